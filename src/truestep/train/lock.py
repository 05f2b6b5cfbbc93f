"""The claim on a run folder: one training process at a time."""

import fcntl
import os
from pathlib import Path

from truestep.errors import FolderInUse


class FolderLock:
    """Holds a run folder for this process until `release` or the process's end, however it ends."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # A record lock, not flock: loader workers are forks and must not keep a dead run's claim alive.
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._file, 32, 0).decode().strip() or "unknown"
            os.close(self._file)
            raise FolderInUse(
                f"{folder} is in use by process {holder}. Wait for it or stop it (kill {holder}), "
                f"or give this run a folder of its own."
            ) from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Give the folder free."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
