"""Files wherever they are, by fsspec, which is optional: list, fetch, read, write.

Owns fsspec. Leaves trying again to `patience`, and how long to wait to the file system.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from truestep.base import plainfile
from truestep.errors import UsageError
from truestep.run.data.shards.urls import is_pattern

Storage = Mapping[str, Any]
_MAX_TEXT_BYTES = 1 << 30


def _place(url: str, storage: Storage) -> tuple[Any, str]:
    """Return the file system of a name, and what the name is there."""
    try:
        import fsspec  # noqa: PLC0415 - optional
    except ImportError as error:
        raise UsageError("shards need fsspec. Install it: pip install 'truestep[shards]'") from error
    try:
        system, path = fsspec.core.url_to_fs(url, **storage)
    except ImportError as error:  # fsspec's message says which package opens such names
        raise UsageError(f"{url} cannot be opened: {error}") from error
    except ValueError as error:
        raise UsageError(f"{url} cannot be opened: {error}. Check how it begins.") from error
    return system, path


def match(pattern: str, *, storage: Storage) -> list[str]:
    """Return the full names of all files that match a pattern."""
    system, path = _place(pattern, storage)
    system.invalidate_cache()
    parts = path.split("/")
    fixed = next(at for at, part in enumerate(parts) if is_pattern(part))
    # Not fsspec's own glob: it passes over folders whose listing failed, and shards would be missing.
    found = ["/".join(parts[:fixed])]
    for part in parts[fixed:]:
        names = ((name, folder) for folder in found for name in _list(system, folder))
        found = [name for name, folder in names if _fits(name, folder, part)]
    # What fsspec gives back has no protocol; without one in the pattern, it is a path on this machine.
    whole = system.unstrip_protocol if "://" in pattern else str
    return [whole(name) for name in found]


def _list(system: Any, folder: str) -> list[str]:
    try:
        return [str(name).rstrip("/") for name in system.ls(folder or "/", detail=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _fits(name: str, folder: str, part: str) -> bool:
    return name.rpartition("/")[0] == folder and fnmatchcase(name.rpartition("/")[2], part)


def fetch(url: str, to: Path, *, storage: Storage) -> None:
    """Copy a whole file to this machine."""
    system, path = _place(url, storage)
    system.invalidate_cache()
    system.get_file(path, str(to))


def read_text(url: str, *, storage: Storage) -> str:
    """Return a whole file as text, one of up to 1 GiB: an index of five million shards is shorter."""
    system, path = _place(url, storage)
    from fsspec.implementations.local import LocalFileSystem  # noqa: PLC0415 - optional

    if type(system) is LocalFileSystem:  # a pipe or a device may be at that place
        return plainfile.read_bytes(Path(path), max_bytes=_MAX_TEXT_BYTES).decode()
    with system.open(path, "rb") as file:
        content: bytes = file.read(_MAX_TEXT_BYTES + 1)
    if len(content) > _MAX_TEXT_BYTES:
        raise ValueError(f"at most {_MAX_TEXT_BYTES:,} bytes are read")
    return content.decode()


def write_text(url: str, text: str, *, storage: Storage) -> None:
    """Write a whole file."""
    system, path = _place(url, storage)
    with system.open(path, "wb") as file:
        file.write(text.encode())
