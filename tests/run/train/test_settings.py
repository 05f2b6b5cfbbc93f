"""Settings beside a script: they stand in for the script's own, are told, recorded, and refused if wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

from truestep import record
from truestep.errors import UsageError
from truestep.run.train.settings import Settings, read, write

TRAIN = """\
import torch
import truestep as ts

with ts.Run("runs/small", seed=1, threads=2, progress=False) as run:
    model = run.place(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.track(model=model, optimizer=optimizer)
    loader = ts.Loader(torch.ones(16, 4), batch_size=8)
    for step in run.steps(loader, epochs=1):
        for x in step:
            step.backward(model(x).pow(2).mean())
        step.update(optimizer)
    print(torch.get_num_threads(), loader.workers, type(model.forward).__name__)
"""


MAPPED = """
import ctypes
import torch

class Info(ctypes.Structure):
    _fields_ = [(f"number_{place}", ctypes.c_size_t) for place in range(10)]

ask = ctypes.CDLL(None).mallinfo2
ask.restype = Info
before = ask().number_4  # bytes that are mapped by themselves, and given back as soon as they are free
kept = torch.ones(7_500_000)
print(ask().number_4 - before)
"""


def train(folder: Path, text: str = TRAIN) -> str:
    (folder / "train.py").write_text(text)
    # Started elsewhere: the file lies beside the script, not in the working folder.
    words = [sys.executable, str(folder / "train.py")]
    (folder / "work").mkdir()
    done = subprocess.run(words, cwd=folder / "work", capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.strip()


def test_a_run_takes_the_settings_beside_its_script(tmp_path: Path) -> None:
    values = {"threads": 1, "workers": 1, "precision": "bf16"}
    write(values, tmp_path / "truestep.toml", comment="Written by a test.")
    assert train(tmp_path) == "1 1 Autocast"
    start = next(record.read(tmp_path / "work/runs/small/record.jsonl"))
    assert start["settings"] == values
    assert start["recipe"]["placement"][0]["precision"] == "bf16"  # part of what the bits depend on


def test_freed_memory_is_kept_if_the_settings_say_so(tmp_path: Path) -> None:
    mapping = f"import truestep as ts\nrun = ts.Run('runs/small', seed=1, progress=False)\n{MAPPED}"
    (tmp_path / "plain").mkdir()
    assert int(train(tmp_path / "plain", mapping)) >= 30_000_000
    write({"allocator": "keep"}, tmp_path / "truestep.toml", comment="Written by a test.")
    assert int(train(tmp_path, mapping)) == 0


def test_without_the_file_the_script_says(tmp_path: Path) -> None:
    assert train(tmp_path) == "2 0 method"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[settings]\nworkers = -1", "workers = -1. It must be a whole number from 0 on"),
        ("[settings]\nthreads = 0", "threads = 0. It must be a whole number from 1 on"),
        ("[settings]\nworkers = true", "workers = True. It must be a whole number"),
        ("[settings]\nspeed = 9", "has 'speed'. It may have one table, [settings], with threads, workers"),
        ("[other]\nworkers = 1", "has 'other'"),
        ("settings = 3", "has no table of settings"),
        ("[settings\n", "cannot be read as TOML"),
    ],
)
def test_what_is_not_understood_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "truestep.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as raised:
        read(path)
    assert said in str(raised.value)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    values = {"threads": 2, "compile": True, "precision": "fp32"}
    write(values, tmp_path / "a.toml", comment="Any.")
    assert read(tmp_path / "a.toml") == Settings(values=values, path=tmp_path / "a.toml")


def test_a_file_that_cannot_be_written_is_told_with_what_to_write(tmp_path: Path) -> None:
    said = r"cannot be written \(Is a directory\)\. .* yourself:\n\[settings\]\nthreads = 2$"
    with pytest.raises(UsageError, match=said):
        write({"threads": 2}, tmp_path, comment="a comment")
