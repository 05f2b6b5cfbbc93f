"""The claim on a run folder: one training run at a time."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from truestep.base import runfiles
from truestep.errors import FolderInUse, TruestepError

_held: dict[tuple[int, int], int] = {}
"""The lock files held here, by device and inode, with this process's id: a fork of it holds none."""


class FolderLock:
    """Holds a run folder for one run until `release` or the process's end, however it ends."""

    def __init__(self, folder: Path) -> None:
        self._file = -1
        self._path = path = folder.absolute() / "lock"  # the script may change its working folder
        # The system's lock belongs to the process and would let a second run in. The file is not even opened:
        # closing any descriptor of it gives the lock free.
        found = runfiles.require_single(path)
        if found is not None and _held.get(_identity(found)) == os.getpid():
            raise FolderInUse(
                f"{folder} is in use by another Run of this process. Call its close() first, "
                f"or give this run its own folder."
            )
        self._file = runfiles.open_in_place(path)
        try:
            # A record lock, not flock: loader workers are forks and must not keep a dead run's claim alive.
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._file, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._file)
            self._file = -1
            if not isinstance(error, BlockingIOError | PermissionError):
                raise  # a file system without locks, for example
            raise FolderInUse(
                f"{folder} is in use by process {holder}. Wait for it or stop it (kill {holder}), "
                f"or give this run its own folder."
            ) from None
        self._identity = _identity(os.fstat(self._file))
        _held[self._identity] = os.getpid()
        try:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)
        except OSError:
            self.release()  # now: whoever handles the error keeps this object alive
            raise

    def require(self) -> None:
        """Raise if the folder is not there any more, or is another one."""
        if self._file >= 0 and not (self._path.exists() and _identity(self._path.stat()) == self._identity):
            raise TruestepError(
                f"{self._path.parent} was deleted, moved or replaced while the run trained in it (its file "
                f"'lock' is gone). Nothing can be saved there any more, so training stops. Put the folder "
                f"back and run the same command again: it resumes at its newest snapshot."
            )

    def release(self) -> None:
        """Give the folder free."""
        if self._file >= 0:
            _held.pop(self._identity, None)
            file, self._file = self._file, -1
            with suppress(OSError):  # released all the same; all that could be lost is this process's id
                os.close(file)

    def __del__(self) -> None:
        self.release()


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
