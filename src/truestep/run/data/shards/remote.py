"""Files wherever they are, by fsspec, which is optional: list, measure, fetch.

Owns fsspec, and that nothing waits for ever. Leaves trying again to `patience`.
"""

import threading
import time
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

from truestep.base import arrow, plainfile
from truestep.errors import UsageError
from truestep.run.data.shards.urls import is_pattern

T = TypeVar("T")
Storage = Mapping[str, Any]
_MAX_TEXT_BYTES = 1 << 30
_PART_BYTES = 1 << 20


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


def match(pattern: str, *, storage: Storage, timeout_s: float) -> list[str]:
    """Return the full names of all files that match a pattern."""

    def ask(watch: "Watch") -> list[str]:
        system, path = _place(pattern, storage)
        system.invalidate_cache()
        parts = path.split("/")
        fixed = next(at for at, part in enumerate(parts) if is_pattern(part))
        # Not fsspec's own glob: it passes over folders whose listing failed, and shards would be missing.
        found = ["/".join(parts[:fixed])]
        for part in parts[fixed:]:
            names = ((name, folder) for folder in found for name in _list(system, folder, watch))
            found = [name for name, folder in names if _fits(name, folder, part)]
        # What fsspec gives back has no protocol; without one in the pattern, it is a path on this machine.
        whole = system.unstrip_protocol if "://" in pattern else str
        return [whole(name) for name in found]

    return within(ask, timeout_s=timeout_s)


def _list(system: Any, folder: str, watch: "Watch") -> list[str]:
    watch.beat()
    try:
        return [str(name).rstrip("/") for name in system.ls(folder or "/", detail=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _fits(name: str, folder: str, part: str) -> bool:
    return name.rpartition("/")[0] == folder and fnmatchcase(name.rpartition("/")[2], part)


def identify(url: str, *, storage: Storage, timeout_s: float) -> tuple[int, str]:
    """Return a file's size, and whatever else tells it from an earlier one of that name and size."""

    def ask(_: "Watch") -> tuple[int, str]:
        system, path = _place(url, storage)
        system.invalidate_cache()
        facts = system.info(path)
        return int(facts["size"]), str([facts.get(name) for name in ("mtime", "ETag", "LastModified")])

    return within(ask, timeout_s=timeout_s)


def count_parquet(url: str, *, storage: Storage, timeout_s: float) -> int:
    """Return the number of rows that a Parquet file's footer tells; the rest of it is not fetched."""

    def ask(_: "Watch") -> int:
        system, path = _place(url, storage)
        with system.open(path, "rb") as file:
            return arrow.count_parquet(file)

    return within(ask, timeout_s=timeout_s)


def fetch(url: str, to: Path, *, storage: Storage, timeout_s: float) -> None:
    """Copy a whole file to this machine; raise TimeoutError if no byte comes for so long."""

    def copy(watch: "Watch") -> None:
        import fsspec.callbacks  # noqa: PLC0415 - optional

        system, path = _place(url, storage)
        system.invalidate_cache()
        system.get_file(path, str(to), callback=fsspec.callbacks.Callback(hooks={"beat": watch.beat}))

    within(copy, timeout_s=timeout_s)


def read_text(url: str, *, storage: Storage, timeout_s: float) -> str:
    """Return a whole file as text, one of up to 1 GiB: an index of five million shards is shorter."""

    def read(watch: "Watch") -> str:
        from fsspec.implementations.local import LocalFileSystem  # noqa: PLC0415 - optional

        system, path = _place(url, storage)
        if type(system) is LocalFileSystem:  # a pipe or a device may be at that place
            return plainfile.read_bytes(Path(path), max_bytes=_MAX_TEXT_BYTES).decode()
        content = bytearray()
        with system.open(path, "rb") as file:
            while part := file.read(_PART_BYTES):
                watch.beat()
                content += part
                if len(content) > _MAX_TEXT_BYTES:
                    raise ValueError(f"at most {_MAX_TEXT_BYTES:,} bytes are read")
        return content.decode()

    return within(read, timeout_s=timeout_s)


def write_text(url: str, text: str, *, storage: Storage, timeout_s: float) -> None:
    """Write a whole file."""

    def write(_: "Watch") -> None:
        system, path = _place(url, storage)
        with system.open(path, "wb") as file:
            file.write(text.encode())

    try:
        within(write, timeout_s=timeout_s)
    except TimeoutError as error:
        raise TimeoutError(f"{url} {error}") from error


class Watch:
    """Signs of life of a task, and whether anybody still waits for it."""

    def __init__(self) -> None:
        self.last_s = time.monotonic()
        self.is_abandoned = False

    def beat(self, *_: Any, **__: Any) -> None:
        """Tell that something came; end the task if nobody waits for it any more."""
        self.last_s = time.monotonic()
        if self.is_abandoned:
            raise TimeoutError("given up")


def within(task: Callable[[Watch], T], *, timeout_s: float) -> T:
    """Return what a task returns; raise TimeoutError when it gave no sign of life for so long."""
    # A thread, because file systems block, and most of them have no time limit to set.
    watch, done = Watch(), threading.Event()
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(task(watch))
        except BaseException as error:  # noqa: BLE001 - raised again by the one who waits
            errors.append(error)
        finally:
            done.set()

    threading.Thread(target=work, daemon=True).start()
    while not done.wait(timeout_s):
        if time.monotonic() - watch.last_s >= timeout_s:
            watch.is_abandoned = True
            raise TimeoutError(f"gave no byte for {timeout_s:g} s")
    if errors:
        raise errors[0]
    return results[0]
