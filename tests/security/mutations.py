"""Good files spoilt as damage and strangers spoil them: bits, structure, names, sizes.

Owns the mutations. Which files are spoilt, and who reads them, is in `readers`.
"""

import json
import os
import struct
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

DEEP = 20_000
_LISTS, _TABLES, _DIGITS = "@lists", "@tables", "@digits"
ODD: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    7,
    2**31,
    2**53 + 1,
    2**63,
    -(2**63) - 1,
    2**64,
    10**400,
    0.5,
    1e308,
    float("nan"),
    float("inf"),
    float("-inf"),
    "",
    "0",
    "nan",
    "-inf",
    "1e999",
    "\u202eé\U0001f600",
    "\ud800",
    "\x00",
    "\x1b[2J",
    "<script>alert(1)</script>",
    "../../../../etc/passwd",
    "/etc/passwd",
    "/dev/zero",
    "a" * 70_000,
    [],
    {},
    [[]],
    [None],
    [2**63, -1],
    {"": None},
    {"type": "tuple", "items": []},
    _LISTS,
    _TABLES,
    _DIGITS,
]
"""Values that somebody else may write where another one is expected."""


def spoil_bytes(rng: Random, data: bytes) -> bytes:
    """Flip bits, cut, repeat, exchange, overwrite: a few times."""
    spoilt = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at, end = sorted((rng.randint(0, len(spoilt)), rng.randint(0, len(spoilt))))
        end = min(end, at + 64)
        kind = rng.randrange(7)
        if kind == 0 and spoilt:
            spoilt[rng.randrange(len(spoilt))] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del spoilt[at:]
        elif kind == 2:
            del spoilt[at:end]
        elif kind == 3:
            spoilt[at:at] = spoilt[at:end]
        elif kind == 4:
            spoilt[at:end] = rng.randbytes(end - at)
        elif kind == 5:
            spoilt[at:at] = rng.choice(
                (b"\x00", b"\xff\xfe", b"\n", b"{", b"]" * 9, b"\xed\xa0\x80", b"9" * 5000)
            )
        else:
            other = rng.randint(0, len(spoilt))
            spoilt[at:end], spoilt[other : other + 8] = spoilt[other : other + 8], spoilt[at:end]
    return bytes(spoilt)


def _places(node: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return every place in a document: a container, and the key or index of what stands there."""
    keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    for key in keys:
        found.append((node, key))
        _places(node[key], found)
    return found


def spoil_document(rng: Random, document: Any) -> Any:
    """Change what stands at some places of a JSON document; the document itself is changed."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = _places(document, [])
        if not places:
            return deepcopy(rng.choice(ODD))
        node, key = rng.choice(places)
        kind = rng.randrange(10)
        if kind < 6:
            node[key] = deepcopy(rng.choice(ODD))
        elif kind == 6:
            del node[key]
        elif kind == 7:
            other, there = rng.choice(places)
            if not isinstance(node[key], dict | list) and there in (
                other if isinstance(other, dict) else range(len(other))
            ):
                node[key] = other[there] if not isinstance(other[there], dict | list) else None
        elif kind == 8 and isinstance(node, dict):
            node[rng.choice(("kind", "name", "version", "x", "")) if rng.random() < 0.5 else key + "_"] = (
                node[key]
            )
        elif isinstance(node, list):
            node.insert(key, deepcopy(rng.choice(ODD)))
    return document


def to_text(document: Any) -> bytes:
    """Write a document as JSON, with what Python's writer does not write: depth, and very long numbers."""
    text = json.dumps(document)
    text = text.replace(f'"{_LISTS}"', "[" * DEEP + "]" * DEEP)
    text = text.replace(f'"{_TABLES}"', '{"a":' * DEEP + "1" + "}" * DEEP)
    return text.replace(f'"{_DIGITS}"', "9" * 5000).encode()


def spoil_json(rng: Random, data: bytes) -> bytes:
    """Spoil a JSON file: mostly as a document, sometimes as bytes."""
    if rng.random() < 0.2:
        return spoil_bytes(rng, data)
    return to_text(spoil_document(rng, json.loads(data)))


def spoil_lines(rng: Random, data: bytes) -> bytes:
    """Spoil a file of JSON lines: one of its lines, or their order."""
    lines = data.splitlines()
    at = rng.randrange(len(lines))
    kind = rng.randrange(10)
    if kind < 7:
        lines[at] = spoil_json(rng, lines[at]).replace(b"\n", b" ")
    elif kind == 7:
        lines.insert(rng.randrange(len(lines)), lines[at])
    elif kind == 8:
        del lines[at]
    else:
        return spoil_bytes(rng, data)
    return b"\n".join(lines) + b"\n"


_TOML = [
    "true",
    "-1",
    "0",
    "99999999999999999999",
    "nan",
    "1979-05-27",
    '""',
    '"../../x"',
    '"\\u0000"',
    "[]",
    "[[1]]",
    '["PAR", 3]',
    "{}",
    "{a = {}}",
    "[" * 1200 + "]" * 1200,
    "9" * 5000,
]


def spoil_toml(rng: Random, data: bytes) -> bytes:
    """Spoil a TOML file: a value, a name, a table, or its bytes."""
    lines = data.decode().splitlines()
    at = rng.randrange(len(lines))
    name, equals, _ = lines[at].partition(" = ")
    kind = rng.randrange(6)
    if kind < 3 and equals:
        lines[at] = f"{name} = {rng.choice(_TOML)}"
    elif kind == 3:
        lines[at] = rng.choice(
            ("tool = 3", "[tool]\ntruestep = []", "x = 1", "[settings.deep]", "[[settings]]")
        )
    elif kind == 4:
        lines.insert(at, ".".join(["a"] * rng.choice((*[2] * 9, 400))) + " = 1")
    else:
        return spoil_bytes(rng, data)
    return "\n".join(lines).encode()


def spoil_safetensors(rng: Random, data: bytes) -> bytes:
    """Spoil the header of a safetensors file, its length, or any of its bytes."""
    (length,) = struct.unpack("<Q", data[:8])
    if rng.random() < 0.3:
        return spoil_bytes(rng, data)
    header = to_text(spoil_document(rng, json.loads(data[8 : 8 + length])))
    told = len(header) if rng.random() < 0.8 else rng.choice((0, 2, 2**31, 2**63, 2**64 - 1))
    return struct.pack("<Q", told) + header + data[8 + length :]


def spoil_place(rng: Random, path: Path) -> None:
    """Put something else where a file was: nothing, a folder, a link, a pipe."""
    path.unlink()
    kind = rng.randrange(6)
    if kind == 0:
        path.mkdir()
    elif kind == 1:
        path.symlink_to("/etc/passwd")
    elif kind == 2:
        path.symlink_to(path.name)
    elif kind == 3:
        path.symlink_to("/dev/null")
    elif kind == 4:
        os.mkfifo(path)
    else:
        path.write_bytes(b"")


Spoil = Callable[[Random, bytes], bytes]
