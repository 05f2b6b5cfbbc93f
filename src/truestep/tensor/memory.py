"""Where tensors and NumPy arrays live: blocks of memory, the facts of one tensor, and who overlaps whom.

Judges by addresses of storages and bytes, never by the identity of Python objects. Reads, writes nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from truestep.tensor.facts import TensorFacts

Thing = Tensor | np.ndarray[Any, np.dtype[Any]]

_MAX_WORK = 10_000_000


@contextmanager
def unwatched() -> Iterator[None]:
    """Let no mode see what is done inside: looking at a tensor is no step of the user's program."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


class Block(NamedTuple):
    """The bytes of one storage or buffer: the device it is on, its first address, and how many."""

    device: str
    start: int
    num_bytes: int
    key: int
    """Tells apart storages without any byte, whose addresses say nothing."""

    def meets(self, other: "Block") -> bool:
        """Whether both have a byte in common; without any byte, whether they are one storage."""
        if self.num_bytes == 0 or other.num_bytes == 0:
            return self.key == other.key and self.num_bytes == other.num_bytes
        is_before = self.start < other.start + other.num_bytes
        return self.device == other.device and is_before and other.start < self.start + self.num_bytes


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """Where the elements of a tensor or array are; strides in bytes."""

    block: Block
    address: int
    """Of element [0, 0, ...]."""
    item_bytes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """The form in which NumPy can compare addresses; it never reads them."""
        return {
            "version": 3,
            "typestr": f"|V{self.item_bytes}",
            "shape": self.shape,
            "strides": self.strides,
            "data": (self.address, True),
        }


def block_of(thing: Thing) -> Block:
    """Return the whole storage of a tensor, or the whole buffer behind a NumPy array."""
    if isinstance(thing, Tensor):
        storage = thing.untyped_storage()
        start = 0 if thing.device.type == "meta" else storage.data_ptr()
        return Block(str(thing.device), start, storage.nbytes() if start else 0, storage._cdata)
    owner: Any = thing
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    if isinstance(owner.base, Tensor):
        return block_of(owner.base)
    steps = [(size - 1) * stride for size, stride in zip(owner.shape, owner.strides, strict=True)]
    low = owner.__array_interface__["data"][0] + sum(min(0, step) for step in steps)
    num_bytes = owner.itemsize + sum(map(abs, steps)) if owner.size else 0
    return Block("cpu", low, num_bytes, id(owner))


def _layout_of(thing: Thing) -> _Layout:
    block = block_of(thing)
    if isinstance(thing, Tensor):
        item = thing.element_size()
        address = block.start + int(thing.storage_offset()) * item
        strides = tuple(step * item for step in thing.stride())
    else:
        item, address, strides = thing.itemsize, thing.__array_interface__["data"][0], thing.strides
    return _Layout(
        block=block, address=address, item_bytes=item, shape=tuple(thing.shape), strides=tuple(strides)
    )


def is_same_memory(first: Thing, second: Thing) -> bool:
    """Whether two things live in one storage or buffer, whether or not their elements meet."""
    return block_of(first).meets(block_of(second))


def is_overlapping(one: Thing, two: Thing) -> bool:
    """Whether a byte belongs to an element of both; beyond a limit of work, whether their ranges meet."""
    if not is_same_memory(one, two) or block_of(one).num_bytes == 0:
        return False
    layouts = np.asarray(_layout_of(one)), np.asarray(_layout_of(two))
    try:
        return bool(np.shares_memory(*layouts, max_work=_MAX_WORK))  # type: ignore[arg-type] # any work is allowed
    except np.exceptions.TooHardError:
        return bool(np.may_share_memory(*layouts))


class Ledger:
    """The blocks of memory met so far, in order."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._holders: list[Thing] = []

    def label(self, thing: Thing) -> str:
        """Return A, B, C ... for the block of a thing: a new one, or an old one that may grow by it."""
        block = block_of(thing)
        for index, known in enumerate(self._blocks):
            if block.meets(known):
                start = min(block.start, known.start)
                end = max(block.start + block.num_bytes, known.start + known.num_bytes)
                self._blocks[index] = known._replace(start=start, num_bytes=end - start)
                break
        else:
            index = len(self._blocks)
            self._blocks.append(block)
            self._holders.append(thing)  # kept alive, so that no later storage gets its address
        turn, letter = divmod(index, 26)
        return chr(ord("A") + letter) + (str(turn) if turn else "")

    def facts(self, thing: Thing, name: str = "") -> TensorFacts:
        """Return the facts of a tensor or array as it is now."""
        with unwatched():
            layout = _layout_of(thing)
            block, item, axes = layout.block, layout.item_bytes, range(len(layout.shape))
            num = thing.numel() if isinstance(thing, Tensor) else thing.size
            return TensorFacts(
                name=name,
                shape=layout.shape,
                dtype=str(thing.dtype).removeprefix("torch."),
                device=block.device,
                stride=tuple(step // item for step in layout.strides),
                offset=(layout.address - block.start) // item if num else 0,
                memory=self.label(thing),
                num_bytes=num * item,
                storage_bytes=block.num_bytes,
                is_contiguous=_is_contiguous(thing),
                expanded_axes=tuple(a for a in axes if layout.shape[a] > 1 and layout.strides[a] == 0),
                autograd=_autograd(thing),
            )


def _is_contiguous(thing: Thing) -> bool:
    return thing.is_contiguous() if isinstance(thing, Tensor) else bool(thing.flags.c_contiguous)


def _autograd(thing: Thing) -> str:
    if not isinstance(thing, Tensor):
        return "NumPy"
    if thing.grad_fn is not None:
        return type(thing.grad_fn).__name__
    leaf = "parameter, leaf" if isinstance(thing, torch.nn.Parameter) else "leaf"
    return leaf if thing.requires_grad else "-"
