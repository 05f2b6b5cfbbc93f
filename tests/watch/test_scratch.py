"""Working folders: each run finds what the user has, and nothing of another run."""

from pathlib import Path

from truestep.watch import scratch as folders
from truestep.watch.scratch import Scratch


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
