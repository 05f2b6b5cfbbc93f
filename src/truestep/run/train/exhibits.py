"""Exhibits: distributions, pictures and texts that a script wants to see beside the curves of its run.

Owns what is written of each. The record holds the numbers and words, the folder `pictures` the PNG files.
"""

import hashlib
import os
import re
import struct
import zlib
from collections.abc import Iterator
from numbers import Number
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from truestep.base import runfiles
from truestep.errors import UsageError
from truestep.picture import Picture
from truestep.record import Record

Exhibit = torch.Tensor | npt.NDArray[Any] | Picture | os.PathLike[str] | str
"""What can be shown: a distribution of numbers, a picture, or a text."""

NUM_BINS = 64
_CHUNK = 1 << 20
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_MAX_NAME = 80


def write_exhibit(name: str, thing: Exhibit, *, record: Record, folder: Path | None, cursor: int) -> None:
    """Write one exhibit; without a folder, as on all processes but the first, it is only looked at."""
    if not isinstance(name, str) or not name:
        raise UsageError(f"run.log(name, thing) needs a name as its first argument, got {name!r}.")
    kind = _kind(name, thing)
    if folder is None:
        return
    if isinstance(thing, os.PathLike):
        _check_png(Path(thing))
    if kind == "histogram":
        record.write("histogram", name=name, cursor=cursor, **histogram(thing))
    elif kind == "text":
        record.write("text", name=name, cursor=cursor, text=thing)
    else:
        file = f"pictures/{_safe(name)}-{cursor:012d}.png"
        if _write_picture(folder / file, thing, record):
            record.write("picture", name=name, cursor=cursor, file=file)


def _kind(name: str, thing: object) -> Literal["histogram", "picture", "text"]:
    if isinstance(thing, str):
        return "text"
    if isinstance(thing, Picture | os.PathLike):
        return "picture"
    is_array = isinstance(thing, torch.Tensor | np.ndarray)
    if isinstance(thing, Number) or (is_array and thing.ndim == 0):  # type: ignore[attr-defined]
        raise UsageError(
            f"run.log takes no single number, got {thing!r}. Use step.log({_keyword(name)}=...)."
        )
    if not isinstance(thing, torch.Tensor | np.ndarray):
        raise UsageError(
            f"run.log takes a tensor, an array, a picture, the path of a PNG or a text, got "
            f"{type(thing).__name__} for {name!r}. Make one of these of it."
        )
    return "picture" if _is_pixels(thing) else _check_numbers(name, thing)


def _keyword(name: str) -> str:
    return name if name.isidentifier() else "name"


def _is_pixels(thing: torch.Tensor | npt.NDArray[Any]) -> bool:
    is_bytes = thing.dtype in (torch.uint8, np.uint8)
    is_shaped = thing.ndim == 2 or (thing.ndim == 3 and thing.shape[2] == 3)
    return is_bytes and is_shaped and 0 not in thing.shape


def _check_numbers(name: str, thing: torch.Tensor | npt.NDArray[Any]) -> Literal["histogram"]:
    is_tensor = isinstance(thing, torch.Tensor)
    is_complex = thing.is_complex() if isinstance(thing, torch.Tensor) else thing.dtype.kind == "c"
    if is_complex or not (is_tensor or thing.dtype.kind in "biuf"):  # type: ignore[union-attr]
        raise UsageError(
            f"run.log needs real numbers, got {thing.dtype} for {name!r}. Pass thing.abs(), or another part."
        )
    return "histogram"


def histogram(thing: Any) -> dict[str, Any]:
    """Return how numbers are spread: range, counts in equal bins, mean and spread of those that are finite.

    In 64-bit numbers, a piece at a time, relative to the largest: nothing overflows, little memory is used.
    """
    values = _flat(thing)
    num, num_finite, low, high = len(values), 0, np.inf, -np.inf
    for finite in _pieces(values):
        num_finite += len(finite)
        low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    counts = np.zeros(NUM_BINS, dtype=np.int64)
    fields: dict[str, Any] = {"num": num, "num_nonfinite": num - num_finite}
    if not num_finite:
        nothing = dict.fromkeys(("low", "high", "mean", "std"), float("nan"))
        return {**nothing, "counts": counts.tolist(), **fields}
    scale = max(abs(low), abs(high)) or 1.0
    mean = sum(float((finite / scale).sum()) for finite in _pieces(values)) / num_finite
    span, squares = high / scale - low / scale, 0.0
    for finite in _pieces(values):
        part = finite / scale
        squares += float(np.square(part - mean).sum())
        place = (part - low / scale) / (span or 1.0) * NUM_BINS
        counts += np.bincount(np.clip(place.astype(np.int64), 0, NUM_BINS - 1), minlength=NUM_BINS)
    std = (squares / num_finite) ** 0.5 * scale
    return {"low": low, "high": high, "counts": counts.tolist(), **fields, "mean": mean * scale, "std": std}


def _flat(thing: Any) -> Any:
    """The elements on the host, in one row; of a sharded tensor this process's own."""
    if isinstance(thing, np.ndarray):
        return thing.reshape(-1)
    tensor = thing.detach()
    tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    tensor = tensor.to_dense() if tensor.layout is not torch.strided else tensor
    return tensor.cpu().reshape(-1)


def _pieces(values: Any) -> Iterator[npt.NDArray[np.float64]]:
    for first in range(0, len(values), _CHUNK):
        piece = values[first : first + _CHUNK]
        is_tensor = isinstance(piece, torch.Tensor)
        numbers = piece.to(torch.float64).numpy() if is_tensor else piece.astype(np.float64)
        finite = numbers[np.isfinite(numbers)]
        if len(finite):
            yield finite


def _check_png(path: Path) -> None:
    try:
        with path.open("rb") as file:
            is_png = file.read(len(_SIGNATURE)) == _SIGNATURE
    except OSError as error:
        raise UsageError(f"run.log cannot read the picture {path} ({error.strerror}).") from error
    if not is_png:
        raise UsageError(f"run.log takes pictures as PNG files, and {path} is none. Save it as .png first.")


def _write_picture(path: Path, thing: Any, record: Record) -> bool:
    """Write the file whole or not at all. A full disk loses it and counts it, as it does a line."""
    try:
        runfiles.require_own(path.parent)
        path.parent.mkdir(exist_ok=True)
        with runfiles.replacing(path) as file:
            file.write(_bytes(thing))
    except OSError:
        record.num_lost += 1
        return False
    return True


def _bytes(thing: Any) -> bytes:
    if isinstance(thing, Picture):
        return thing.to_bytes("png")
    return Path(thing).read_bytes() if isinstance(thing, os.PathLike) else _png(thing)


def _png(thing: Any) -> bytes:
    """Pixels as a PNG file: grey, or red, green and blue."""
    pixels = thing.detach().cpu().numpy() if isinstance(thing, torch.Tensor) else thing
    height, width = pixels.shape[:2]
    rows = np.ascontiguousarray(pixels).reshape(height, -1)
    lines = np.concatenate([np.zeros((height, 1), dtype=np.uint8), rows], axis=1)  # 0: no filter in this row
    colour = 2 if pixels.ndim == 3 else 0
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 6)), (b"IEND", b""))
    return _SIGNATURE + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def _safe(name: str) -> str:
    """A name that any file system takes; one that had to be changed is told from others by its hash."""
    safe = re.sub(r"[^a-z0-9_.-]+", "_", name, flags=re.IGNORECASE | re.ASCII).lstrip(".-")[:_MAX_NAME] or "_"
    if safe == name == name.lower():
        return safe
    return f"{safe}-{hashlib.sha256(name.encode('utf-8', 'backslashreplace')).hexdigest()[:8]}"
