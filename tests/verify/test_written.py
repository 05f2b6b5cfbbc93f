"""Files that two runs have written: the same, or what differs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.verify.asking import ask
from truestep.verify import formats, written

Write = Callable[[Path, int], None]


def text(path: Path, value: int) -> None:
    path.write_text(f"epoch,loss\n0,1.5\n1,{value}\n")


def array(path: Path, value: int) -> None:
    np.array([1, value], np.int8).tofile(path)


def mapped(path: Path, value: int) -> None:
    opened = np.memmap(path, np.int8, "w+", shape=(4,))
    opened[2] = value
    opened.flush()


@pytest.mark.parametrize(
    ("write", "what"),
    [
        (text, "line 3"),
        (array, "byte 1"),
        (mapped, "byte 2"),
    ],
)
def test_what_differs_in_a_file_is_named(tmp_path: Path, write: Write, what: str) -> None:
    folders = [tmp_path / name for name in "abc"]
    for folder, value in zip(folders, (2, 2, 3), strict=True):
        folder.mkdir()
        write(folder / "file.bin", value)
    first, again, other = (next(folder.iterdir()) for folder in folders)
    assert formats.difference(first, again) is None
    assert formats.difference(first, other) == what


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
    return ask(folder, train.replace("END", end), *options)


@pytest.mark.parametrize(
    ("end", "differing", "num"),
    [
        (SAVE.replace("VALUE", "random.random()"), {"ck.pt": "byte"}, 1),
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
    found = {item["path"]: item["what"] for item in said["files"]["differing"]}
    assert found.keys() == differing.keys()
    assert all(found[path].startswith(what) for path, what in differing.items()), found
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
