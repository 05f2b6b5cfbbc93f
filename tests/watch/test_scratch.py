"""Working folders: each run finds what the user has, and nothing of another run."""

import errno
from pathlib import Path
from typing import Any

import pytest

from truestep.errors import UsageError
from truestep.watch.launch import scratch as folders
from truestep.watch.launch.scratch import Scratch


def fill(origin: Path) -> None:
    (origin / "data").mkdir()
    (origin / "data" / "rows.txt").write_text("1 2 3")
    (origin / "train.py").write_text("print()")
    (origin / ".git").mkdir()
    (origin / ".git" / "config").write_text("")


def test_a_copy_can_be_written_and_the_origin_stays(tmp_path: Path) -> None:
    fill(tmp_path)
    with Scratch(tmp_path) as scratch:
        work = scratch.renew()
        assert sorted(path.name for path in work.iterdir()) == ["data", "train.py"]
        (work / "data" / "rows.txt").write_text("changed")
        (work / "data" / "last.pt").write_text("saved")
        assert (tmp_path / "data" / "rows.txt").read_text() == "1 2 3"
        assert not (tmp_path / "data" / "last.pt").exists()
        again = scratch.renew()
        assert again == work
        assert [path.name for path in (again / "data").iterdir()] == ["rows.txt"]
    assert not work.exists()


def test_large_files_are_linked(tmp_path: Path) -> None:
    for name in ("large.csv", "large.pt"):
        (tmp_path / name).write_bytes(b"x" * (folders._MAX_BYTES + 1))
    (tmp_path / "small.csv").write_bytes(b"x")
    with Scratch(tmp_path) as scratch:
        work = scratch.renew()
        assert (work / "large.csv").is_symlink()
        assert not (work / "small.csv").is_symlink()
        assert (work / "large.csv").read_bytes() == (tmp_path / "large.csv").read_bytes()
        assert not (work / "large.pt").is_symlink()  # saved over, it would be the user's own


def test_nothing_is_written_through_the_copy_of_a_crowded_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "_MAX_ENTRIES", 20)
    (tmp_path / "data").mkdir()
    for index in range(20):
        (tmp_path / "data" / f"{index}.jpg").write_bytes(b"x")
    kept = tmp_path / "runs" / "exp1"
    kept.mkdir(parents=True)
    for name in ("last.pt", "log.csv"):
        (kept / name).write_text("the user's own")
    with Scratch(tmp_path) as scratch:
        work = scratch.renew()
        assert (work / "data" / "9.jpg").is_symlink()
        for name in ("last.pt", "log.csv", "new.jpg"):
            (work / "runs" / "exp1" / name).write_text("written by a run")
    assert {path.name: path.read_text() for path in kept.iterdir()} == dict.fromkeys(
        ("last.pt", "log.csv"), "the user's own"
    )


def test_small_files_are_copied_a_while_longer_and_logs_always(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "_SMALL_BYTES", 100)
    monkeypatch.setattr(folders, "_MAX_TOTAL", 200)
    for name, size in {"a.dat": 150, "b.dat": 150, "c.png": 90, "d.png": 90, "e.png": 90}.items():
        (tmp_path / name).write_bytes(b"x" * size)
    for name in ("f.log", "g.png"):
        (tmp_path / name).write_bytes(b"x" * 90)
    with Scratch(tmp_path) as scratch:
        linked = [path.name for path in sorted(scratch.renew().iterdir()) if path.is_symlink()]
    assert linked == ["b.dat", "g.png"]


def test_a_full_disk_is_told_and_no_checkpoint_is_linked_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_source: Any, target: Any) -> None:
        Path(target).touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "last.pt").write_text("saved")
    monkeypatch.setattr(folders.shutil, "copyfile", fail)
    with (
        Scratch(tmp_path) as scratch,
        pytest.raises(UsageError, match=r"has no room for a copy of .* TMPDIR"),
    ):
        scratch.renew()


def test_links_stay_links(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "rows.txt").write_text("1")
    origin = tmp_path / "origin"
    origin.mkdir()
    (origin / "data").symlink_to(elsewhere)
    (origin / "gone").symlink_to(tmp_path / "nowhere")
    with Scratch(origin) as scratch:
        work = scratch.renew()
        assert (work / "data" / "rows.txt").read_text() == "1"
        assert (work / "gone").is_symlink()


def test_evidence_folders_are_new_each_time(tmp_path: Path) -> None:
    with Scratch(tmp_path) as scratch:
        first, second = scratch.new_folder(), scratch.new_folder()
        assert first != second
        assert not first.is_relative_to(scratch.work)


def test_a_script_is_found_in_the_copy_unless_it_is_not_copied(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    with Scratch(origin) as scratch:
        for path in ("train.py", "sub/train.py"):
            assert scratch.locate(str(origin / path)) == path
        for path in ("../train.py", ".venv/bin/train.py"):
            located = Path(scratch.locate(str(origin / path)))
            assert located.is_absolute() and located == (origin / path).resolve()
