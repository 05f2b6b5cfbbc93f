"""A working folder for each run, so that no run finds what another has written.

Owns the copy of the folder that the user stands in. Folders are made anew, small files are copied, large ones
are linked; the user's own folder is not written to. Links of the user's own stay links.
"""

import contextlib
import errno
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from truestep.base import plainfile
from truestep.errors import UsageError
from truestep.watch.launch.commit import Commit

_MAX_BYTES = 32 << 20
"""A file above this is linked: data, which nobody writes over."""
_MAX_TOTAL = 256 << 20
"""How much is copied before files above the next are linked too; after as much again, all but the two kinds
below: a folder of pictures is not copied for each run."""
_SMALL_BYTES = 1 << 20
_WRITTEN = {".bin", ".ckpt", ".h5", ".npy", ".npz", ".onnx", ".pkl", ".pt", ".pth", ".safetensors", ".tar"}
"""What training writes is copied whatever its size: through a link it would write over the user's own."""
_APPENDED = {".csv", ".db", ".json", ".jsonl", ".log", ".md", ".out", ".tsv", ".txt", ".yaml", ".yml"}
"""What scripts add lines to is copied as long as it is small, however many files there are."""
_MAX_ENTRIES = 20_000
"""After so many the rest is taken for data, and linked file by file: a linked folder would be written to."""
_MAX_HEAD = 4096
_TAIL_LINES = 12
COPIED = ".copied"
"""A file in the copy of a run's folder: a `truestep.Run` there begins anew; readers find it whole."""
_PROCESS_FILES = ("record.jsonl", "lock")
"""In the folder of a `truestep.Run`: the times of its steps, and the id of the process that writes there."""
_LEFT_OUT = {".git", ".hg", ".venv", "venv", "node_modules", "__pycache__", ".mypy_cache", ".pytest_cache"}


class Scratch:
    """A folder with room for the evidence, and for one working folder at a time, always at the same path."""

    def __init__(self, origin: Path) -> None:
        self.origin = origin
        # Resolved: as a script in it sees its own path.
        self._root = Path(tempfile.mkdtemp(prefix="truestep-")).resolve()
        self._num_folders = 0
        self._begun: dict[str, tuple[int, int, int]] = {}
        self.work = self._root / "work"
        """Where a script runs. The same path for all: it may get into what a script computes."""
        self._kept = self._root / "kept"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # limits: Python calls it like this
        shutil.rmtree(self._root, ignore_errors=True)

    def renew(self, commit: Commit | None = None) -> Path:
        """Make the working folder as the user's own is, or was in a commit, and return it."""
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir()
        _Copy(self.origin, self.work).make()
        if commit is not None:
            commit.put(self.work)
        self._begun = {name: _stamp(path) for name, path in self._files()}
        return self.work

    def written(self) -> dict[str, Path]:
        """Return the files that a run has made or changed in the working folder, by their names in it.

        Compiled Python is left out, and what a `truestep.Run` notes of its times and its process.
        """
        return {name: path for name, path in self._files() if self._begun.get(name) != _stamp(path)}

    def _files(self) -> Iterator[tuple[str, Path]]:
        waiting = [self.work]
        while waiting:
            found = _entries(waiting.pop())
            is_run = any(entry.name == "run.json" and _is_ours(entry) for entry in found)
            for entry in found:
                if entry.is_dir(follow_symlinks=False):
                    waiting += [Path(entry.path)] if entry.name not in _LEFT_OUT else []
                elif entry.is_file(follow_symlinks=False) and not (is_run and entry.name in _PROCESS_FILES):
                    yield os.path.relpath(entry.path, self.work), Path(entry.path)

    def keep(self) -> None:
        """Keep the working folder as a run has left it."""
        shutil.rmtree(self._kept, ignore_errors=True)
        shutil.copytree(self.work, self._kept, symlinks=True)

    def restore(self) -> None:
        """Make the working folder as it was kept."""
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self._kept, self.work, symlinks=True)

    def locate(self, path: str) -> str:
        """Return a script's path as seen from the copied folder: it may write beside itself."""
        absolute = Path(os.path.abspath(path))  # noqa: PTH100 - without `..`, which would lead out of the copy
        is_inside = absolute.is_relative_to(self.origin)
        inside = absolute.relative_to(self.origin) if is_inside else absolute
        return str(inside if is_inside and not _LEFT_OUT.intersection(inside.parts) else absolute)

    def original(self, path: str) -> str:
        """Return the user's own file for one in the copied folder."""
        place = Path(path)
        return str(self.origin / place.relative_to(self.work)) if place.is_relative_to(self.work) else path

    def package(self) -> Path:
        """Return a folder that holds this truestep alone, for an interpreter that may have none."""
        folder = self._root / "package"
        if not folder.exists():
            folder.mkdir()
            (folder / "truestep").symlink_to(Path(__file__).parents[2], target_is_directory=True)
        return folder

    def new_folder(self) -> Path:
        """Return an empty folder for the evidence of one run."""
        self._num_folders += 1
        folder = self._root / f"evidence-{self._num_folders:04}"  # as long for each: addresses depend on it
        folder.mkdir()
        return folder


def tail_of(log: Path) -> str:
    """Return the last lines of what a script printed, for a message."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])


class _Copy:
    """One copy, with what it may still take."""

    def __init__(self, origin: Path, target: Path) -> None:
        self._origin = origin
        self._target = target
        self._bytes_left = _MAX_TOTAL
        self._entries_left = _MAX_ENTRIES

    def make(self) -> None:
        waiting = deque([(self._origin, self._target)])
        while waiting:
            source, target = waiting.popleft()  # breadth first: what lies near the script is copied rather
            for entry in _entries(source):
                if entry.name == "run.json" and _is_ours(entry):
                    (target / COPIED).touch()
                if entry.name in _LEFT_OUT or Path(entry.path) == self._target.parent:
                    continue
                self._entries_left -= 1
                place = target / entry.name
                if entry.is_dir(follow_symlinks=False):
                    place.mkdir()
                    waiting.append((Path(entry.path), place))
                elif not self._copy_file(entry, place):
                    place.symlink_to(entry.path)

    def _copy_file(self, entry: os.DirEntry[str], place: Path) -> bool:
        if not entry.is_file(follow_symlinks=False):
            return False
        size = entry.stat(follow_symlinks=False).st_size
        if not self._is_copied(Path(entry.name).suffix.lower(), size):
            return False
        try:
            shutil.copyfile(entry.path, place)
        except OSError as error:  # not readable, or gone: the script will meet the same
            place.unlink(missing_ok=True)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise UsageError(
                    f"{tempfile.gettempdir()} has no room for a copy of {self._origin}. "
                    "Make room there, or set TMPDIR to a folder that has some."
                ) from error
            return False
        with contextlib.suppress(OSError):
            shutil.copystat(entry.path, place)
        self._bytes_left -= size
        return True

    def _is_copied(self, suffix: str, size: int) -> bool:
        if suffix in _WRITTEN or (suffix in _APPENDED and size <= _SMALL_BYTES):
            return True
        is_small = size <= _SMALL_BYTES and self._bytes_left > -_MAX_TOTAL
        return self._entries_left > 0 and (is_small or size <= min(_MAX_BYTES, self._bytes_left))


def _stamp(path: Path) -> tuple[int, int, int]:
    known = path.stat()
    return known.st_ino, known.st_size, known.st_mtime_ns


def _is_ours(entry: os.DirEntry[str]) -> bool:
    try:
        return b'"truestep-run"' in plainfile.read_bytes(Path(entry.path))[:_MAX_HEAD]
    except (OSError, ValueError):
        return False


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except OSError:
        return []
