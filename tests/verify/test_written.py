"""Files that two runs have written: the same but for their format's own time stamps, or what differs."""

import gzip
import io
import json
import sqlite3
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from truestep.verify import formats, written

Write = Callable[[Path, int, float], None]


def text(path: Path, value: int, _when: float) -> None:
    path.write_text(f"epoch,loss\n0,1.5\n1,{value}\n")


def numbers(path: Path, value: int, _when: float) -> None:
    path.write_text(json.dumps({"loss": value}))


def database(path: Path, value: int, when: float) -> None:
    with sqlite3.connect(path) as opened:
        opened.execute("create table losses (loss)")
        for number in (0, value) if when > 1e9 else (value,):  # counted by sqlite
            opened.execute("delete from losses")
            opened.execute("insert into losses values (?)", (number,))
            opened.commit()
    opened.close()


def archive(path: Path, value: int, when: float) -> None:
    with zipfile.ZipFile(path, "w") as opened:
        opened.writestr(zipfile.ZipInfo("a.txt", time.gmtime(when)[:6]), f"loss\n{value}")


def compressed(path: Path, value: int, when: float) -> None:
    into = io.BytesIO()
    with gzip.GzipFile(fileobj=into, mode="wb", mtime=when) as opened:
        opened.write(f"loss\n{value}".encode())
    path.write_bytes(into.getvalue())


def events(path: Path, value: int, when: float) -> None:
    found = b""
    for number in (0, value):
        event = b"\x09" + struct.pack("<d", when) + bytes([0x10, number])
        found += struct.pack("<Q", len(event)) + bytes(4) + event + bytes(4)
    path.with_name("events.out.tfevents.1").write_bytes(found)


def checkpoint(path: Path, value: int, _when: float) -> None:
    torch.save({"model": torch.ones(3), "history": [0.5, float(value)], "best": 1.0}, path)


def array(path: Path, value: int, _when: float) -> None:
    np.array([1, value], np.int8).tofile(path)


def mapped(path: Path, value: int, _when: float) -> None:
    opened = np.memmap(path, np.int8, "w+", shape=(4,))
    opened[2] = value
    opened.flush()


@pytest.mark.parametrize(
    ("write", "what"),
    [
        (text, "line 3"),
        (numbers, "line 1"),
        (database, "page 2"),
        (archive, "a.txt: line 2"),
        (compressed, "line 2"),
        (events, "event 2"),
        (checkpoint, "data.pkl: values after 'history'"),
        (array, "byte 1"),
        (mapped, "byte 2"),
    ],
)
def test_what_differs_in_a_file_is_named_and_time_stamps_of_its_format_are_not(
    tmp_path: Path, write: Write, what: str
) -> None:
    folders = [tmp_path / name for name in "abc"]
    for folder, value, when in zip(folders, (2, 2, 3), (1e9, 1.1e9, 1e9), strict=True):
        folder.mkdir()
        write(folder / "file.bin", value, when)
    first, again, other = (next(folder.iterdir()) for folder in folders)
    assert formats.difference(first, again) is None
    assert formats.difference(first, other) == what


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_model_that_differs_is_named(tmp_path: Path) -> None:
    module = torch.nn.Linear(1, 1)
    traced = torch.jit.trace(module, torch.ones(1, 1))
    for name, value in (("a", 2.0), ("b", 2.0), ("c", 3.0)):
        torch.nn.init.constant_(module.weight, value)
        torch.jit.save(traced, str(tmp_path / name))
    assert formats.difference(tmp_path / "a", tmp_path / "b") is None
    found = formats.difference(tmp_path / "a", tmp_path / "c")
    assert found is not None and "data/" in found


def compared(
    tmp_path: Path, ours: dict[str, str], theirs: dict[str, str], *, was_ended: bool
) -> written.WrittenFiles:
    both = []
    for side, files in (("ours", ours), ("theirs", theirs)):
        (tmp_path / side).mkdir()
        for name, contents in files.items():
            (tmp_path / side / name).write_text(contents)
        both.append({name: tmp_path / side / name for name in files})
    found = written.keep(both[0], tmp_path / "kept")
    found.compare(both[1], was_ended=was_ended)
    return found


def test_names_with_the_time_in_them_are_paired_and_others_are_in_one_run_only(tmp_path: Path) -> None:
    ours = {"log-1101.txt": "a", "best.txt": "b", "same.txt": "c"}
    found = compared(tmp_path, ours, {"log-1102.txt": "a", "same.txt": "c"}, was_ended=False)
    assert found.unlike == {"best.txt": "in one run only"}
    assert found.words == "1 of 3 files written differs: best.txt (in one run only)"


def test_a_file_that_still_grows_when_a_run_is_ended_is_not_called_the_same(tmp_path: Path) -> None:
    found = compared(tmp_path, {"log": "a\nb", "one": "1"}, {"log": "a\n", "one": "1"}, was_ended=True)
    assert (found.num_compared, found.unlike) == (1, {})
    assert found.words == "not compared: log (still being written)"
    assert found.as_fields()["not_compared"] == ["log"]


def test_a_file_that_is_shorter_at_the_end_differs(tmp_path: Path) -> None:
    found = compared(tmp_path, {"log": "a\nb"}, {"log": "a\n"}, was_ended=False)
    assert found.words == "the file written differs: log (line 2)"


TRAIN = """
import random, subprocess, sys, time, torch
torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
for step in range(2):
    optimizer.zero_grad()
    model(torch.ones(2)).sum().backward()
    optimizer.step()
END
"""
SAVE = 'torch.save({"model": model.state_dict(), "history": [VALUE]}, "ck.pt")'
CHILD = """code = "import time; open('child.txt', 'w').write(str(time.time()))"
subprocess.run([sys.executable, "-c", code])"""


RUN = """
import torch, truestep
with truestep.Run("run", seed=1, snapshots=truestep.Snapshots(every_steps=2)) as run:
    model = run.place(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.track(model=model, optimizer=optimizer)
    loader = truestep.Loader(torch.utils.data.TensorDataset(torch.ones(8, 2)), batch_size=2)
    for step in run.steps(loader, steps=6):
        for (x,) in step:
            step.backward(model(x).mean())
        step.update(optimizer)
"""


def verify(folder: Path, end: str, *options: str, train: str = TRAIN) -> Any:
    (folder / "train.py").write_text(train.replace("END", end))
    words = [sys.executable, "-m", "truestep", "verify", "--format", "json", *options, "train.py"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=540)
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("end", "differing", "num"),
    [
        (SAVE.replace("VALUE", "random.random()"), {"ck.pt": "data.pkl: values after 'history'"}, 1),
        (SAVE.replace("VALUE", "0.5"), {}, 1),
        (CHILD, {"child.txt": "line 1"}, 1),
        ("print(time.time(), file=open('log', 'w')); open('a', 'w').write('1')", {"log": "line 1"}, 2),
        ("pass", {}, 0),
    ],
)
def test_files_that_differ_are_named_and_training_that_is_the_same_is_the_same(
    tmp_path: Path, end: str, differing: dict[str, str], num: int
) -> None:
    said = verify(tmp_path, end)
    assert said["same"] is True, said
    assert {item["path"]: item["what"] for item in said["files"]["differing"]} == differing
    assert said["files"]["compared"] == num


def test_a_learning_rate_that_differs_at_the_end_is_a_difference(tmp_path: Path) -> None:
    said = verify(tmp_path, "optimizer.param_groups[0]['lr'] = random.random()")
    assert said["same"] is False
    assert "optimizer 0: settings" in said["first_difference"]["what"]


def test_a_run_that_was_killed_and_resumed_leaves_the_same_files(tmp_path: Path) -> None:
    said = verify(tmp_path, "", "--kill", train=RUN)
    assert said["same"] is True, said
    assert said["files"]["differing"] == []
    assert said["files"]["compared"] > 4
