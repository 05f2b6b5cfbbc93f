"""Chunks: tensors on disk that are read when and as far as they are needed, from one file or several.

Owns putting chunks together. Leaves to `snapshot` where they are, and the bytes of a file to safetensors.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open

from truestep.errors import DamagedSnapshot
from truestep.run.checkpoint.parts import Box
from truestep.run.checkpoint.tensorfile import CODES


class Chunk(NamedTuple):
    """A piece of a tensor under a name of its own in a file."""

    file: str
    name: str
    box: Box


@dataclass(frozen=True, kw_only=True)
class Stored:
    """One tensor on disk. Nothing is read before it is asked for; the files stay open as long as `Files`."""

    shape: torch.Size
    dtype: torch.dtype
    chunks: Sequence[Chunk]
    read: Callable[[Chunk, tuple[slice, ...]], torch.Tensor]

    def view(self, box: Box) -> torch.Tensor | None:
        """Return a box of the tensor mapped from its file, if it lies within one chunk: copy what is kept."""
        for chunk in self.chunks:
            if chunk.box.meet(box) == box:
                return self.read(chunk, box.within(chunk.box))
        return None

    def whole(self) -> torch.Tensor:
        """Return all of the tensor: mapped from its file if that has it in one piece."""
        box = Box((0,) * len(self.shape), tuple(self.shape))
        found = self.view(box)
        if found is not None:
            return found
        self._require(sum(math.prod(chunk.box.sizes) for chunk in self.chunks), box)  # before memory is taken
        return self.fill(torch.empty(self.shape, dtype=self.dtype), box)

    def fill(self, target: torch.Tensor, box: Box) -> torch.Tensor:
        """Copy a box of the tensor into memory of that box's size, and return that memory."""
        num_filled = 0
        for chunk in self.chunks:
            common = chunk.box.meet(box)
            if common is not None:
                target[common.within(box)].copy_(self.read(chunk, common.within(chunk.box)))
                num_filled += math.prod(common.sizes)
        self._require(num_filled, box)
        return target

    def _require(self, num_found: int, box: Box) -> None:
        if num_found != math.prod(box.sizes):
            found = f"{num_found:,} of {math.prod(box.sizes):,} elements"
            raise DamagedSnapshot(f"the chunks of a tensor of shape {tuple(self.shape)} hold {found}")


class Files:
    """The tensor files of one snapshot, each opened once: `with Files(folder, names) as files`."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder = folder
        self._names = names
        self._open: dict[str, Any] = {}
        self._stack = ExitStack()

    def __enter__(self) -> "Files":
        with ExitStack() as stack:
            for name in self._names:
                self._open[name] = stack.enter_context(safe_open(self._folder / name, framework="pt"))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.clear()
        self._stack.close()

    def agree_with(self, tensors: Mapping[str, Stored]) -> bool:
        """Whether the files hold exactly the chunks of these tensors, with their shapes and dtypes."""
        expected = {
            (chunk.file, chunk.name): (chunk.box.sizes, CODES[tensor.dtype])
            for tensor in tensors.values()
            for chunk in tensor.chunks
        }
        found = {}
        for file, handle in self._open.items():
            for name in handle.keys():  # noqa: SIM118 - not a mapping
                header = handle.get_slice(name)
                found[file, name] = (tuple(header.get_shape()), header.get_dtype())
        num_chunks = sum(len(tensor.chunks) for tensor in tensors.values())
        return found == expected and len(expected) == num_chunks

    def read(self, chunk: Chunk, slices: tuple[slice, ...]) -> torch.Tensor:
        """Return a slice of a chunk, mapped from its file."""
        handle = self._open[chunk.file]
        if not slices or 0 in chunk.box.sizes:  # safetensors cuts no slices out of these
            tensor: torch.Tensor = handle.get_tensor(chunk.name)
            return tensor
        cut: torch.Tensor = handle.get_slice(chunk.name)[slices]
        return cut
