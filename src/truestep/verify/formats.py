"""What differs between two files: compared byte for byte, but for time stamps that their format adds.

Owns what is known of formats. Reads files that scripts have written, and unpickles nothing.
"""

import gzip
import io
import json
import pickletools
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np

_MAX_BYTES = 1 << 28
"""Larger files are compared byte for byte, and not looked into."""
_CHUNK = 1 << 20
_SQLITE, _GZIP, _ZIP = b"SQLite format 3\0", b"\x1f\x8b", b"PK\x03\x04"
_SQLITE_COUNTERS = (slice(24, 28), slice(92, 100))
"""How often the file was changed, when that was last counted, and by which version."""
_EVENTS = ".tfevents."
_HEADER, _FOOTER = 12, 4
_WALL_TIME = 0x09
"""The tag of an event's time, a double at its beginning."""
_CONTROL = bytes(set(range(32)) - set(b"\b\t\n\f\r\033"))
"""Bytes that no text has."""
_STRINGS = ("SHORT_BINUNICODE", "BINUNICODE")
_OURS = b"truestep-"
_RUN_ID = ("id", "run", "sha256")
"""Fields of files of a `truestep.Run`: its id, which is random, and the hash of a file that has it."""


def difference(first: Path, second: Path) -> str | None:
    """Return what differs between two files: a line, an entry, a byte; None if nothing does."""
    if _are_equal(first, second):
        return None
    if max(first.stat().st_size, second.stat().st_size) > _MAX_BYTES:
        return "contents"
    return _of_bytes(first.read_bytes(), second.read_bytes(), name=first.name)


def is_beginning(first: Path, second: Path) -> bool:
    """Whether one file is the beginning of the other."""
    size = min(first.stat().st_size, second.stat().st_size)
    return all(one == other for one, other in _chunks(first, second, size=size))


def _are_equal(first: Path, second: Path) -> bool:
    size = first.stat().st_size
    is_as_long = size == second.stat().st_size
    return is_as_long and all(one == other for one, other in _chunks(first, second, size=size))


def _chunks(first: Path, second: Path, *, size: int) -> Iterator[tuple[bytes, bytes]]:
    with first.open("rb") as one, second.open("rb") as other:
        for begin in range(0, size, _CHUNK):
            length = min(_CHUNK, size - begin)
            yield one.read(length), other.read(length)


def _of_bytes(ours: bytes, theirs: bytes, *, name: str) -> str | None:
    if ours == theirs:
        return None
    for beginning, read in ((_ZIP, _of_zip), (_GZIP, _of_gzip), (_SQLITE, _of_sqlite)):
        if ours.startswith(beginning) and theirs.startswith(beginning):
            try:
                return read(ours, theirs)
            except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, NotImplementedError):
                break  # damaged: as bytes
    if _EVENTS in name:
        events = [list(_events(data)) for data in (ours, theirs)]
        place = _first_unlike(*events)
        return None if place is None else f"event {place + 1}"
    if name.endswith(".pkl"):
        return _of_pickle(ours, theirs)
    if name.endswith(".json") and _OURS in ours and _without_run_id(ours) == _without_run_id(theirs):
        return None
    return _of_text(ours, theirs) or f"byte {_first_byte(ours, theirs)}"


def _of_zip(ours: bytes, theirs: bytes) -> str | None:
    """Compare archives by their entries: times of entries are left out, and torch's name of the whole."""
    archives = [zipfile.ZipFile(io.BytesIO(data)) for data in (ours, theirs)]
    names = [archive.namelist() for archive in archives]
    for one, other in zip_longest(*names):
        if one is None or other is None:
            return f"{one or other} in one of them only"
        if _inner(one) != _inner(other):
            return f"{one} and {other}"
        found = _of_bytes(archives[0].read(one), archives[1].read(other), name=one)
        if found is not None:
            return f"{_inner(one)}: {found}"
    return None


def _inner(name: str) -> str:
    """Return an entry's name without the folder that torch names after the file."""
    return name.partition("/")[2] or name


def _of_gzip(ours: bytes, theirs: bytes) -> str | None:
    one, other = (gzip.decompress(data) for data in (ours, theirs))
    return _of_bytes(one, other, name="")


def _of_sqlite(ours: bytes, theirs: bytes) -> str | None:
    both = [bytearray(data) for data in (ours, theirs)]
    for data in both:
        for counter in _SQLITE_COUNTERS:
            data[counter] = bytes(counter.stop - counter.start)
    place = _first_byte(*both)
    size = int.from_bytes(ours[16:18], "big")
    page = 1 << 16 if size == 1 else max(size, 1)
    return None if place is None else f"page {place // page + 1}"


def _events(data: bytes) -> Iterator[bytes]:
    """Yield the events of a TensorBoard file without the time at which each was written."""
    place = 0
    while place + _HEADER <= len(data):
        (length,) = struct.unpack_from("<Q", data, place)
        event = data[place + _HEADER : place + _HEADER + length]
        yield event[9:] if event[:1] == bytes([_WALL_TIME]) else event
        place += _HEADER + length + _FOOTER


def _of_pickle(ours: bytes, theirs: bytes) -> str:
    """Return the last name before the first value that differs: mostly the key that it is under."""
    name = ""
    try:
        both = zip(pickletools.genops(ours), pickletools.genops(theirs), strict=False)
        for (one, value, _), (other, theirs_value, _) in both:
            if (one.name, value) != (other.name, theirs_value):
                break
            name = value if one.name in _STRINGS and isinstance(value, str) else name
    except ValueError:
        return "pickled values"
    return f"values after {name!r}" if name else "pickled values"


def _without_run_id(data: bytes) -> object:
    """Return the content of a file of a `truestep.Run` without what is random; any other file's bytes."""
    try:
        found = json.loads(data)
    except ValueError:
        return data
    if not isinstance(found, dict) or not str(found.get("format")).startswith(_OURS.decode()):
        return data
    return {key: value for key, value in found.items() if key not in _RUN_ID}


def _of_text(ours: bytes, theirs: bytes) -> str | None:
    try:
        texts = [data.decode().split("\n") for data in (ours, theirs)]
    except UnicodeDecodeError:
        return None
    if any(len(data.translate(None, _CONTROL)) < len(data) for data in (ours, theirs)):
        return None
    place = _first_unlike(*texts)
    return None if place is None else f"line {place + 1}"


def _first_unlike(ours: Sequence[object], theirs: Sequence[object]) -> int | None:
    pairs = enumerate(zip_longest(ours, theirs))
    return next((place for place, (one, other) in pairs if one != other), None)


def _first_byte(ours: bytes | bytearray, theirs: bytes | bytearray) -> int | None:
    size = min(len(ours), len(theirs))
    unlike = np.flatnonzero(np.frombuffer(ours, np.uint8, size) != np.frombuffer(theirs, np.uint8, size))
    return int(unlike[0]) if len(unlike) else None if len(ours) == len(theirs) else size
