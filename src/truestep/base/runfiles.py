"""Files that truestep writes inside a run folder, which a stranger may have filled.

Owns that writing stays in the folder: a link, a pipe or a device in the place of a file is refused, and so is
a linked subfolder. Owns too that a name stands for a whole file after a power cut. What is written is up to
the caller.
"""

import errno
import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from truestep.errors import FolderUnusable

_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def require_own(path: Path, *, opened: int | None = None) -> os.stat_result | None:
    """Return the status of what has a name in a run folder, if anything; refuse links, pipes and devices.

    A folder in the place of a file, or the other way round, is refused by the system itself.
    """
    try:
        found = os.lstat(path) if opened is None else os.fstat(opened)
    except FileNotFoundError:
        return None
    kind = _KINDS.get(stat.S_IFMT(found.st_mode))
    if kind is not None:
        raise FolderUnusable(
            f"{path} is {kind}. truestep did not write to it: that could change a file outside the "
            f"folder. Delete it or move it away, or choose another path."
        )
    return found


def require_single(path: Path, *, opened: int | None = None) -> os.stat_result | None:
    """Do the same for a file that is changed in place: it may have no second name either."""
    found = require_own(path, opened=opened)
    if found is not None and stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
        quoted = shlex.quote(str(path))
        raise FolderUnusable(
            f"{path} has a second name (a hard link). Writing to it would change that file too, which may be "
            f"outside the folder. Put a copy in its place: "
            f"cp {quoted} {quoted}.new && mv {quoted}.new {quoted}"
        )
    return found


def open_in_place(path: Path, flags: int = 0) -> int:
    """Open a file for reading and writing, made if it is missing; return its descriptor."""
    with explained(path):
        require_single(path)  # before it is opened: opening some devices does something already
        flags |= os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        opened = os.open(path, flags, 0o644)
        try:
            require_single(path, opened=opened)
        except FolderUnusable:
            os.close(opened)
            raise
        return opened


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file that takes a name once it is complete and on the disk; until then, what had it stays.

    Leave the file open. A file that is write-protected is not replaced, though the system would allow it.

    Example: `with replacing(folder / "report.html") as file: file.write(page)`
    """
    before = require_own(path)
    if before is not None and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    temporary = path.with_name(f".new-{os.urandom(8).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        opened = os.open(temporary, flags, 0o666)
        with os.fdopen(opened, "wb") as file:
            if before is not None:
                with suppress(PermissionError):  # only root may give a file away
                    os.fchown(opened, before.st_uid, before.st_gid)
                os.fchmod(opened, before.st_mode & 0o777)  # what was private stays private
            yield file
            file.flush()
            os.fsync(opened)  # first: a power cut can keep a rename and lose what the file holds
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def sync_folder(folder: Path) -> None:
    """Flush a folder's list of names: without it a rename can be lost when the power goes."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path, *, with_parents: bool = True) -> None:
    """Make a folder and those above it, each flushed into the one above; existing ones are left alone."""
    if folder.is_dir():
        return
    if with_parents:
        make_folder(folder.parent)
    try:
        folder.mkdir()
    except FileExistsError:
        if not folder.is_dir():  # otherwise another process was here first
            raise
    sync_folder(folder.parent)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn a refusal of the system into an error that says what to do."""
    try:
        yield
    except OSError as error:
        raise FolderUnusable(
            f"{path} cannot be written ({error.strerror or error}). A run needs a folder that it can write. "
            f"Make {path.parent} writable, or use another folder."
        ) from error
