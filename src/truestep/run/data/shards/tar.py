"""Samples in a tar file, as WebDataset writes them: members that follow each other under one key.

Owns where a sample begins and what is in it. Leaves files to `opened` and `cache`.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Offsets = npt.NDArray[np.int64]
ReadAt = Callable[[int, int], bytes]
"""Reads from an offset, that many bytes or fewer at the end."""

KEY = "__key__"
_BLOCK = 512
_SAMPLE = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)")
_NO_SAMPLE = re.compile(r"__[^/]*__(?:$|/)")
_REGULAR, _LONG_NAME, _EXTENDED = (b"0", b"\0", b"7"), b"L", b"x"
_PREPARES_THE_NEXT = (b"g", b"K")


class Member(NamedTuple):
    """A regular file in the archive: its name, where its headers begin, where its data are."""

    name: str
    begin: int
    data: int
    size: int


def find_samples(read: ReadAt, *, num_bytes: int) -> Offsets:
    """Return where each sample begins, and where the last one ends; this reads the headers only."""
    begins: list[int] = []
    key, endings, end = None, set[str](), 0
    for member in _members(read, 0, num_bytes, is_checked=True):
        end = member.data + member.size
        parts = _key_and_ending(member.name)
        if parts is None:
            continue
        if parts[0] != key:
            begins.append(member.begin)
            key, endings = parts[0], set()
        if parts[1] in endings:
            raise ValueError(f"the sample {key!r} has two members that end in .{parts[1]}")
        endings.add(parts[1])
    return np.array([*begins, end], dtype=np.int64)


def read_sample(read: ReadAt, begin: int, *, end: int) -> dict[str, str | bytes]:
    """Return the sample between two offsets: its key, and the bytes of each member by its ending."""
    region = read(begin, end - begin)
    if len(region) < end - begin:
        raise ValueError(f"it ends after {begin + len(region):,} bytes, in the middle of a sample")
    sample: dict[str, str | bytes] = {}
    for member in _members(lambda at, size: region[at : at + size], 0, len(region)):
        parts = _key_and_ending(member.name)
        if parts is not None:
            sample[KEY] = parts[0]
            sample[parts[1]] = region[member.data : member.data + member.size]
    return sample


def _key_and_ending(name: str) -> tuple[str, str] | None:
    found = _SAMPLE.fullmatch(name)
    if found is None or _NO_SAMPLE.match(name):
        return None
    return found[1], found[2].lower()


def _members(read: ReadAt, at: int, end: int, *, is_checked: bool = False) -> Iterator[Member]:
    begin, name, size = at, None, None
    while at + _BLOCK <= end:
        header = _header(read, at, is_checked=is_checked)
        if header is None:
            return
        kind, length = header[156:157], _number(header[124:136])
        if kind in _REGULAR and size is not None:
            length = size
        data = at + _BLOCK
        at = data + (length + _BLOCK - 1) // _BLOCK * _BLOCK
        if data + length > end:
            raise ValueError(f"it ends after {end:,} bytes, in the middle of a member")
        if kind == _EXTENDED:
            name, size = _extended(read(data, length), name)
        elif kind == _LONG_NAME:
            name = _text(read(data, length))
        elif kind == b"S":
            raise ValueError("it has a sparse member, which is not supported")
        elif kind not in _PREPARES_THE_NEXT:
            if kind in _REGULAR:
                yield Member(name or _name(header), begin, data, length)
            begin, name, size = at, None, None


def _header(read: ReadAt, at: int, *, is_checked: bool) -> bytes | None:
    header = read(at, _BLOCK)
    if header[0] == 0:
        return None  # the archive ends with empty blocks
    if is_checked:
        _check(header, at)
    return header


def _check(header: bytes, at: int) -> None:
    found = sum(header) - sum(header[148:156]) + 8 * ord(" ")
    try:
        is_right = found == _number(header[148:156])
    except ValueError:
        is_right = False
    if not is_right:
        raise ValueError(f"there is no tar header at byte {at:,}")


def _extended(records: bytes, name: str | None) -> tuple[str | None, int | None]:
    """Return the name and the size that a pax header has for the next member, if it has them."""
    size = None
    while records:
        space = records.index(b" ")
        length = int(records[:space])
        if not space < length <= len(records):
            raise ValueError(f"a pax record claims to have {length:,} of {len(records):,} bytes")
        key, _, value = records[space + 1 : length - 1].partition(b"=")
        if key == b"path":
            name = _text(value)
        elif key == b"size":
            size = _not_negative(int(value))
        elif key.startswith(b"GNU.sparse"):
            raise ValueError("it has a sparse member, which is not supported")
        records = records[length:]
    return name, size


def _number(field: bytes) -> int:
    if field[0] & 0x80:  # more than eight octal digits can say
        return int.from_bytes(field[1:], "big")
    return _not_negative(int(field.partition(b"\0")[0].strip() or b"0", 8))


def _not_negative(number: int) -> int:
    if number < 0:  # whoever goes on from there reads the same headers again and again
        raise ValueError(f"a header has the negative number {number:,}")
    return number


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _name(header: bytes) -> str:
    name = _text(header[:100])
    # GNU's own format has other things where the prefix is in the standard one.
    prefix = _text(header[345:500]) if header[257:263] == b"ustar\0" else ""
    return f"{prefix}/{name}" if prefix else name
