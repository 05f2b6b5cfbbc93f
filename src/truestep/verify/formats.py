"""What differs between two files, which are compared byte for byte.

Owns the words for it: a line of a text, a byte of anything else. The random id of a `Run` is left out.
Reads files that scripts have written, and unpickles nothing.
"""

import json
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import numpy as np

_MAX_BYTES = 1 << 28
"""Larger files are compared byte for byte, and not looked into."""
_CHUNK = 1 << 20
_CONTROL = bytes(set(range(32)) - set(b"\b\t\n\f\r\033"))
"""Bytes that no text has."""
_OURS = b"truestep-"
_RUN_ID = ("id", "run", "sha256")
"""Fields of files of a `truestep.Run`: its id, which is random, and the hash of a file that has it."""


def difference(first: Path, second: Path) -> str | None:
    """Return what differs between two files: a line or a byte; None if nothing does."""
    size = first.stat().st_size
    is_as_long = size == second.stat().st_size
    if is_as_long and is_beginning(first, second):
        return None
    if max(size, second.stat().st_size) > _MAX_BYTES:
        return "contents"
    ours, theirs = first.read_bytes(), second.read_bytes()
    if first.suffix == ".json" and _OURS in ours and _without_run_id(ours) == _without_run_id(theirs):
        return None
    return _first_line(ours, theirs) or f"byte {_first_byte(ours, theirs)}"


def is_beginning(first: Path, second: Path) -> bool:
    """Whether one file is the beginning of the other."""
    return all(one == other for one, other in _chunks(first, second))


def _chunks(first: Path, second: Path) -> Iterator[tuple[bytes, bytes]]:
    size = min(first.stat().st_size, second.stat().st_size)
    with first.open("rb") as one, second.open("rb") as other:
        for begin in range(0, size, _CHUNK):
            length = min(_CHUNK, size - begin)
            yield one.read(length), other.read(length)


def _without_run_id(data: bytes) -> object:
    """Return the content of a file of a `truestep.Run` without what is random; any other file's bytes."""
    try:
        found = json.loads(data)
    except ValueError:
        return data
    if not isinstance(found, dict) or not str(found.get("format")).startswith(_OURS.decode()):
        return data
    return {key: value for key, value in found.items() if key not in _RUN_ID}


def _first_line(ours: bytes, theirs: bytes) -> str | None:
    """Return the first line that differs; None if one of the two is not text."""
    if any(len(data.translate(None, _CONTROL)) < len(data) for data in (ours, theirs)):
        return None
    try:
        texts = [data.decode().split("\n") for data in (ours, theirs)]
    except UnicodeDecodeError:
        return None
    places = (place for place, (one, other) in enumerate(zip_longest(*texts)) if one != other)
    return f"line {next(places) + 1}"


def _first_byte(ours: bytes, theirs: bytes) -> int:
    size = min(len(ours), len(theirs))
    unlike = np.flatnonzero(np.frombuffer(ours, np.uint8, size) != np.frombuffer(theirs, np.uint8, size))
    return int(unlike[0]) if len(unlike) else size
