"""Files that survive a crash: written once, flushed to the disk, made visible by rename.

Every system call that changes files goes through `os` by attribute, so that a test can kill the process
between any two of them. Leaves what the files mean to others.
"""

import hashlib
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_CHUNK_BYTES = 16 << 20


class Written(NamedTuple):
    """What a file was meant to hold when it was written."""

    num_bytes: int
    sha256: str


def write_file(path: Path, pieces: Iterable[bytes | memoryview]) -> Written:
    """Write a new file and flush it to the disk; the file must not exist yet.

    The hash is of the bytes in memory, so that what the disk did wrong is seen when the file is read.
    """
    hashed = hashlib.sha256()
    num_bytes = 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        for piece in pieces:
            rest = memoryview(piece)
            while rest.nbytes:
                done = os.write(descriptor, rest[:_CHUNK_BYTES])
                hashed.update(rest[:done])
                num_bytes += done
                rest = rest[done:]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return Written(num_bytes, hashed.hexdigest())


def hash_file(path: Path) -> str:
    """Return the sha256 of a file's content as it is on the disk."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove(path: Path) -> None:
    """Remove a file or a folder with all it holds, as far as that is possible.

    What is left behind (a file that is still open on a network disk) carries a temporary name already, and
    the next cleaning removes it; it must not turn a finished save into a failed one.
    """
    with suppress(OSError):  # rmtree ignores all errors but those of closing
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)
