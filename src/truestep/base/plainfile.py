"""Plain files: small JSON and TOML files that anybody may have written.

Owns that reading one ends in an answer, an OSError or a ValueError: no pipe holds the reader, no size fills
its memory, no depth ends it. What a file has to hold is up to whoever asks for it.
"""

import json
import os
import stat
import tomllib
from pathlib import Path
from typing import Any

MAX_TOML_BYTES = 1 << 20
"""Settings are written by hand, and Python's reader of TOML is slow."""
MAX_BYTES = 64 << 20
"""The largest file that makes sense here, an index of a million tensors, is about this long."""


def is_there(path: str | Path) -> bool:
    """Whether a name is that of a file; one that is too long, or lies where we may not look, is none."""
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises there


def open_at_once(path: str, flags: int) -> int:
    """Open a file without waiting for a pipe; an `opener`, because `open` closes what it then refuses."""
    return os.open(path, flags | os.O_NONBLOCK)


def read_bytes(path: Path, *, max_bytes: int = MAX_BYTES) -> bytes:
    """Return what a regular file holds; a pipe, a device or a folder is not waited for."""
    with open(path, "rb", opener=open_at_once) as opened:
        found = os.fstat(opened.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("not a regular file")
        if found.st_size > max_bytes:
            raise ValueError(f"{found.st_size:,} bytes, at most {max_bytes:,} are read")
        return opened.read(max_bytes)


def parse_json(text: bytes | str) -> Any:
    """Return a JSON document; ValueError also where it is nested deeper than Python reads."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(path: Path) -> Any:
    """Return the JSON document in a file."""
    return parse_json(read_bytes(path))


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables in a TOML file."""
    text = read_bytes(path, max_bytes=MAX_TOML_BYTES).decode()
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
