"""Descriptors: what was let go, or could not be opened, keeps no file open."""

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import truestep as ts
from tests.run.data import shard_files
from truestep.base import plainfile
from truestep.record import Record
from truestep.report.live.follow import Follower
from truestep.run.data.shards.opened import TarSamples


def num_open() -> int:
    gc.collect()
    return len([*Path("/proc/self/fd").iterdir()])


def read_a_sample(folder: Path) -> None:
    shard_files.write_all(folder)
    for kind in shard_files.KINDS:
        shard_files.shards_of(f"{folder}/part-*.{kind}", folder / "cache")[0]


def write_a_line(folder: Path) -> None:
    Record(folder / "record.jsonl").write("text")


def begin_a_damaged_run(folder: Path) -> None:
    (folder / "run.json").write_text("{")
    with pytest.raises(ts.errors.TruestepError):
        ts.Run(folder, seed=1, lanes=1, progress=False)


def begin_without_a_record(folder: Path) -> None:
    (folder / "record.jsonl").mkdir()
    with pytest.raises(ts.errors.FolderUnusable, match=r"record.jsonl cannot be written \(Is a directory\)"):
        ts.Run(folder, seed=1, lanes=1, progress=False)


def open_without_offsets(folder: Path) -> None:
    (folder / "0.tar").touch()
    with pytest.raises(FileNotFoundError):
        TarSamples(folder / "0.tar", folder / "none")


def read_a_folder(folder: Path) -> None:
    with pytest.raises(IsADirectoryError):
        plainfile.read_bytes(folder)
    assert Follower(folder).look() == ([], False)


USES = (
    read_a_sample,
    write_a_line,
    begin_a_damaged_run,
    begin_without_a_record,
    open_without_offsets,
    read_a_folder,
)


@pytest.mark.parametrize("use", USES)
def test_nothing_stays_open(tmp_path: Path, use: Callable[[Path], None]) -> None:
    (tmp_path / "first").mkdir()
    use(tmp_path / "first")  # what is imported and kept for good is opened here
    before = num_open()
    for number in range(3):
        (tmp_path / str(number)).mkdir()
        use(tmp_path / str(number))
    assert num_open() == before


def test_what_was_closed_is_not_closed_again_when_it_goes(tmp_path: Path) -> None:
    record = Record(tmp_path / "record.jsonl")
    record.close()
    foreign = os.open(tmp_path, os.O_RDONLY)  # gets the number that has become free
    del record
    gc.collect()
    os.fstat(foreign)
    os.close(foreign)


def test_files_still_open_at_the_end_of_the_interpreter_end_quietly(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib\n"
        "from truestep.record import Record\n"
        f"kept = sys.kept = Record(pathlib.Path({str(tmp_path / 'record.jsonl')!r}))\n"
        "kept.me = kept\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
