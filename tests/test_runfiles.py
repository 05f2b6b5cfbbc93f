"""Writing inside a run folder."""

import os
import stat
from pathlib import Path

import pytest

from truestep.base import runfiles
from truestep.errors import FolderUnusable


def test_what_fails_half_way_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    with pytest.raises(TypeError), runfiles.replacing(path) as file:
        file.writelines([b"new", None])  # type: ignore[list-item]
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_replaced_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    path.chmod(0o600)
    with runfiles.replacing(path) as file:
        file.write(b"new")
    assert path.read_text() == "new" and stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_second_name_of_a_replaced_file_keeps_what_it_had(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("old")
    os.link(tmp_path / "theirs", tmp_path / "record.csv")
    with runfiles.replacing(tmp_path / "record.csv") as file:
        file.write(b"new")
    assert (tmp_path / "theirs").read_text() == "old"


def test_a_file_that_is_changed_in_place_may_have_no_second_name(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("old")
    os.link(tmp_path / "theirs", tmp_path / "lock")
    with pytest.raises(FolderUnusable, match=r"lock has a second name .a hard link.*Put a copy in its place"):
        runfiles.open_in_place(tmp_path / "lock")


def test_a_name_as_long_as_the_disk_takes_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("a" * 255)
    with runfiles.replacing(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
