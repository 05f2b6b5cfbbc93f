"""Locks between processes of one machine, that end with whoever holds them, however that ends.

Owns the lock's file and its removal. What is protected is the cache's affair.
"""

import fcntl
import os
from pathlib import Path
from types import TracebackType

SHARED, ALONE = fcntl.LOCK_SH, fcntl.LOCK_EX


class Lock:
    """A lock on a file of its own: held by one, or shared by many, until `release`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self._owner = 0

    def acquire(self, mode: int, *, waits: bool = True) -> bool:
        """Take the lock, or change how it is held; tell whether it is held now."""
        while True:
            if self._file < 0:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                self._owner = os.getpid()
            try:
                fcntl.flock(self._file, mode if waits else mode | fcntl.LOCK_NB)
            except BlockingIOError:
                self.release()
                return False
            if self._is_current():
                return True
            self.release()  # somebody removed the file while we waited for it: lock the new one

    def remove(self) -> None:
        """Remove the lock's file; it has to be held alone."""
        self._path.unlink(missing_ok=True)

    def release(self) -> None:
        """Give it free."""
        if self._file < 0:
            return
        # A fork has copies of our files, which would keep the lock; what it forgets must not unlock ours.
        if self._owner == os.getpid():
            fcntl.flock(self._file, fcntl.LOCK_UN)
        os.close(self._file)
        self._file = -1

    def __enter__(self) -> "Lock":
        self.acquire(ALONE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()

    def _is_current(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._file), self._path.stat())
        except FileNotFoundError:
            return False
