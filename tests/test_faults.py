"""Files that are replaced, and the record, on a disk that fails or loses its power at any operation."""

import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.faults import Disk, all_faults, build, folder_in_memory
from truestep.check.fixing import _Files
from truestep.errors import FolderUnusable, TruestepError
from truestep.record import Record, read
from truestep.report import compose
from truestep.report.compose import write_report
from truestep.report.export import export
from truestep.report.runs import read_run
from truestep.run.train import settings

OLD = b"old, and the user's own\n"


def write_record(path: Path, *, num: int = 5) -> Record:
    record = Record(path)
    record.write("start", version=1, cursor=0, run="a")
    for number in range(num):
        record.write("steps", first=number, loss=[float(number)], end_us=[number])
    record.close()
    return record


# One file that is replaced


def fix(root: Path) -> None:
    path = str(root / "train.py")
    evidence: Any = SimpleNamespace(source=lambda _: SimpleNamespace(raw=OLD.decode()))
    _Files(evidence).write({path: "new = 1\n" * 2000})


@dataclass(frozen=True)
class Writer:
    """Something that writes one file."""

    file: str
    act: Callable[[Path], Any]


WRITERS = {
    "report": Writer("report.html", write_report),
    "csv": Writer("record.csv", lambda root: export(root, "csv")),
    "truestep.toml": Writer(
        settings.NAME, lambda root: settings.write({"threads": 2}, root / settings.NAME, comment="measured")
    ),
    "fix": Writer("train.py", fix),
}


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield folder


@pytest.fixture
def original(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(compose, "render", lambda *_args, **_more: "<html>" * 5000)  # rendering takes long
    root = tmp_path / "original"
    path = root / WRITERS[name].file
    path.parent.mkdir(parents=True)
    path.write_bytes(OLD)
    write_record(root / "record.jsonl")
    return root


def rehearse(root: Path, act: Callable[[Path], Any]) -> Disk:
    with Disk(root, is_checked=True) as disk:
        act(root)
        disk.acknowledge("written")
    return disk


def leftovers(path: Path) -> list[str]:
    return [found.name for found in path.parent.iterdir() if found.name.startswith(".")]


@pytest.mark.parametrize("name", WRITERS)
def test_whatever_operation_fails_a_replaced_file_is_the_old_or_the_new_one(
    name: str, original: Path, tmp_path: Path
) -> None:
    writer = WRITERS[name]
    root = shutil.copytree(original, tmp_path / "a" / "run")
    disk = rehearse(root, writer.act)
    new = (root / writer.file).read_bytes()
    assert new != OLD
    faults = all_faults(disk.operations)
    print(f"{name}: {len(disk.operations)} operations, {len(faults)} faults")
    for fault in faults:
        shutil.rmtree(root)
        shutil.copytree(original, root)
        failed = None
        with Disk(root, fault):
            try:
                writer.act(root)
            except TruestepError as error:
                failed = error
        path, what = root / writer.file, (fault, disk.operations[fault.at], failed)
        assert path.read_bytes() in ([OLD, new] if failed else [new]), what
        assert failed is None or fault.how != "short", what
        assert fault.how == "gone" or leftovers(path) == [], what  # a disk that is gone removes nothing
        if path.read_bytes() == OLD:  # what has its new text is not fixed again
            writer.act(root)
        assert path.read_bytes() == new, what


@pytest.mark.parametrize("name", WRITERS)
def test_whenever_the_power_goes_a_replaced_file_is_the_old_or_the_new_one(
    name: str, original: Path, tmp_path: Path
) -> None:
    writer = WRITERS[name]
    root = shutil.copytree(original, tmp_path / "a" / "run")
    disk = rehearse(root, writer.act)
    new = (root / writer.file).read_bytes()
    cuts = list(disk.power_cuts(seeds=range(5)))
    print(f"{name}: {len(disk.operations)} operations, {len(cuts)} power cuts")
    for num, variant, tree in cuts:
        assert tree[writer.file] in (OLD, new), (variant, disk.operations[:num])


# Links

FOLLOWED, REFUSED = ["fix"], ["report", "csv", "truestep.toml"]


@pytest.mark.parametrize("name", REFUSED)
def test_a_link_in_the_place_of_an_output_is_refused(name: str, original: Path, tmp_path: Path) -> None:
    path = original / WRITERS[name].file
    path.rename(tmp_path / "theirs")
    path.symlink_to(tmp_path / "theirs")
    with pytest.raises(TruestepError, match=rf"{re.escape(path.name)} is a symbolic link"):
        WRITERS[name].act(original)
    assert (tmp_path / "theirs").read_bytes() == OLD and path.is_symlink()
    assert leftovers(path) == leftovers(tmp_path / "theirs") == []


@pytest.mark.parametrize("name", FOLLOWED)
def test_a_script_that_is_a_link_stays_one_and_the_file_behind_it_is_replaced(
    name: str, original: Path, tmp_path: Path
) -> None:
    path = original / WRITERS[name].file
    (tmp_path / "project").mkdir()
    target = path.rename(tmp_path / "project" / "train.py")
    target.chmod(0o640)
    (original / "between").symlink_to("../project/train.py")
    path.symlink_to("between")
    inode = target.stat().st_ino
    WRITERS[name].act(original)
    assert path.is_symlink() and target.read_bytes() != OLD
    assert target.stat().st_ino != inode and stat.S_IMODE(target.stat().st_mode) == 0o640
    assert leftovers(path) == leftovers(target) == []


def test_every_writer_is_either_refused_or_followed() -> None:
    assert sorted([*FOLLOWED, *REFUSED]) == sorted(WRITERS)


@pytest.mark.parametrize("name", WRITERS)
def test_a_write_protected_file_is_not_replaced(
    name: str, original: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # chmod does not stop root
    with pytest.raises(TruestepError):
        WRITERS[name].act(original)
    assert (original / WRITERS[name].file).read_bytes() == OLD


# The record

LINES = [("start", {"version": 1, "cursor": 0})] + [("steps", {"first": number}) for number in range(4)]


def write_lines(root: Path) -> Record:
    record = Record(root / "record.jsonl")
    for kind, fields in LINES:
        record.write(kind, **fields)
    record.close()
    return record


def is_part(found: list[dict[str, Any]]) -> bool:
    """Whether events are some of those that were written, in their order."""
    rest = iter({"kind": kind, **fields} for kind, fields in LINES)
    return all(any(fields.items() <= event.items() for fields in rest) for event in found)


def go_on(root: Path) -> list[dict[str, Any]]:
    """Write a line more, and return what is read before it."""
    record = Record(root / "record.jsonl")
    record.write("evaluate", value=1)
    record.close()
    *before, last = read(root / "record.jsonl")
    assert last["kind"] == "evaluate" and record.num_lost == 0
    read_run(root)
    return before


@pytest.mark.parametrize("torn", [b"", b'{"kind":"steps","fir'], ids=["new", "torn"])
def test_whatever_operation_fails_the_record_loses_lines_and_counts_them(torn: bytes, tmp_path: Path) -> None:
    def make(folder: Path) -> Path:
        folder.mkdir()
        if torn:
            (folder / "record.jsonl").write_bytes(torn)
        return folder

    disk = rehearse(make(tmp_path / "counted"), write_lines)
    faults = all_faults(disk.operations)
    print(f"record: {len(disk.operations)} operations, {len(faults)} faults")
    for number, fault in enumerate(faults):
        root = make(tmp_path / str(number))
        failed, record = None, None
        with Disk(root, fault):
            try:
                record = write_lines(root)
            except FolderUnusable as error:
                failed = error
        assert failed is None or disk.operations[fault.at].startswith(("create", "open")), (fault, failed)
        before = go_on(root)
        assert is_part(before), (fault, before)
        num_missing = len(LINES) - len(before)
        # The last one may be written although closing failed: who was told that it may be lost is not harmed.
        assert record is None or num_missing <= record.num_lost <= num_missing + 1, fault


@pytest.mark.parametrize("has_lines", [False, True])
def test_whenever_the_power_goes_the_record_can_be_read_and_continued(
    has_lines: bool, tmp_path: Path
) -> None:
    root = tmp_path / "run"
    root.mkdir()
    if has_lines:
        write_lines(root)
    disk = rehearse(root, write_lines)
    cuts = list(disk.power_cuts(seeds=range(20)))
    print(f"record: {len(disk.operations)} operations, {len(cuts)} power cuts")
    for number, (num, variant, tree) in enumerate(cuts):
        before = go_on(build(tree, tmp_path / str(number)))
        kept = before[len(LINES) :] if has_lines else before
        assert is_part(kept), (variant, disk.operations[:num], before)
        assert not has_lines or (is_part(before[: len(LINES)]) and len(before) >= len(LINES))


# The layer itself


def test_what_is_not_flushed_can_be_lost_and_what_is_flushed_cannot(tmp_path: Path) -> None:
    def write(*flushed: str) -> set[bytes | None]:
        root = tmp_path / "-".join(("at", *flushed))
        root.mkdir()
        with Disk(root, is_checked=True) as disk:
            file = os.open(root / "new", os.O_WRONLY | os.O_CREAT)
            os.write(file, b"content")
            if "file" in flushed:
                os.fsync(file)
            os.close(file)
            (root / "new").rename(root / "name")
            if "folder" in flushed:
                folder = os.open(root, os.O_RDONLY)
                os.fsync(folder)
                os.close(folder)
            disk.acknowledge("all")
        last = len(disk.operations)
        return {tree.get("name") for num, _, tree in disk.power_cuts() if num == last}

    assert {None, b"", b"con", bytes(7), b"content"} <= write()
    assert write("file") == {None, b"content"}
    assert {b"", b"content"} <= write("folder") and None not in write("folder", "again")
    assert write("file", "folder") == {b"content"}


def test_a_file_that_is_written_around_the_layer_is_noticed(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    arounds: list[Callable[[str], Any]] = [
        lambda path: save_file({"a": torch.zeros(2)}, path),
        lambda path: torch.save({"a": torch.zeros(2)}, path),
        lambda path: os.system(f"echo a > {path}"),
    ]
    for number, around in enumerate(arounds):
        root = tmp_path / str(number)
        root.mkdir()
        with Disk(root, is_checked=True):
            around(str(root / "file"))
            with pytest.raises(AssertionError, match="something wrote around Disk"):
                (root / "next").mkdir()
