"""PNG files of a run's folder, read with distrust: the record that names them may come from somebody else.

Owns what is read at all. A file outside of the folder, no PNG, or too large is told in words instead.
"""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from truestep.base.plainfile import open_at_once

MAX_BYTES = 3_000_000
"""Of one file, and of all those in one report."""
_MAX_SIDE = 16_384
_MAX_PIXELS = 40_000_000
_HEAD = b"\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR"
"""With what every PNG begins; its width and height follow."""


@dataclass(frozen=True, kw_only=True)
class Png:
    """A file's bytes and the size of its picture."""

    data: bytes
    width: int
    height: int


def read_png(folder: Path, file: str) -> Png | str:
    """Return a picture inside the folder, or in words why it is not shown."""
    try:
        root = folder.resolve(strict=True)
        path = (root / file).resolve(strict=True)
        if not path.is_relative_to(root):
            return "outside the run's folder"
        data = _read(path)
    except (OSError, ValueError, RuntimeError) as error:
        return getattr(error, "strerror", None) or "no name of a file"
    return data if isinstance(data, str) else _look(data)


def _read(path: Path) -> bytes | str:
    # Links were followed above; one that was put there since is refused, and a pipe must not hold us.
    with open(path, "rb", opener=lambda name, flags: open_at_once(name, flags | os.O_NOFOLLOW)) as opened:
        found = os.fstat(opened.fileno())
        if not stat.S_ISREG(found.st_mode):
            return "no file"
        if found.st_size > MAX_BYTES:
            return f"larger than {MAX_BYTES / 1e6:.0f} MB"
        return opened.read(MAX_BYTES + 1)


def _look(data: bytes) -> Png | str:
    width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    if not data.startswith(_HEAD) or len(data) < 33 or not width or not height:
        return "no PNG"
    # Few bytes can be a picture that fills the reader's memory.
    if max(width, height) > _MAX_SIDE or width * height > _MAX_PIXELS or len(data) > MAX_BYTES:
        return f"too large, {width:,} x {height:,} pixels"
    return Png(data=data, width=width, height=height)
