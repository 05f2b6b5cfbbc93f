"""Where tensors and NumPy arrays live: blocks of memory, the facts of one tensor, and who overlaps whom.

Judges by addresses of storages and bytes, never by the identity of Python objects. Reads, writes nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
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


class Span(NamedTuple):
    """The bytes of one storage or buffer: the device it is on, its first address, and how many."""

    device: str
    start: int
    num_bytes: int
    key: int
    """Tells apart storages without any byte, whose addresses say nothing."""


def span_of(thing: Thing) -> Span:
    """Return the whole storage of a tensor, or the whole buffer behind a NumPy array."""
    if isinstance(thing, Tensor):
        storage = thing.untyped_storage()
        address = 0 if thing.device.type == "meta" else storage.data_ptr()
        return Span(str(thing.device), address, storage.nbytes() if address else 0, storage._cdata)
    owner: Any = thing
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    if isinstance(owner.base, Tensor):
        return span_of(owner.base)
    low, high = _range_of(owner)
    return Span("cpu", low, high - low if owner.size else 0, id(owner))


def is_same_memory(first: Thing, second: Thing) -> bool:
    """Whether two things live in one storage or buffer, whether or not their elements meet."""
    return is_touching(span_of(first), span_of(second))


def is_touching(one: Span, two: Span) -> bool:
    """Whether two spans have a byte in common; without any byte, whether they are one storage."""
    if one.num_bytes == 0 or two.num_bytes == 0:
        return one.key == two.key and one.num_bytes == two.num_bytes
    is_before = one.start < two.start + two.num_bytes
    return one.device == two.device and is_before and two.start < one.start + one.num_bytes


def item_bytes(thing: Thing) -> int:
    """Return how many bytes one element takes."""
    return thing.element_size() if isinstance(thing, Tensor) else thing.itemsize


def byte_strides(thing: Thing) -> tuple[int, ...]:
    """Return how many bytes further the next element along each axis is."""
    if isinstance(thing, Tensor):
        return tuple(step * thing.element_size() for step in thing.stride())
    return tuple(thing.strides)


def first_address(thing: Thing) -> int:
    """Return the address of element [0, 0, ...]."""
    if isinstance(thing, Tensor):
        return span_of(thing).start + int(thing.storage_offset()) * thing.element_size()
    address: int = thing.__array_interface__["data"][0]
    return address


def _num_elements(thing: Thing) -> int:
    return thing.numel() if isinstance(thing, Tensor) else thing.size


def is_overlapping(one: Thing, two: Thing) -> bool:
    """Whether a byte belongs to an element of both; beyond a limit of work, whether their ranges meet."""
    if not is_same_memory(one, two) or span_of(one).num_bytes == 0:
        return False
    layouts = np.asarray(_Layout(one)), np.asarray(_Layout(two))
    try:
        return bool(np.shares_memory(*layouts, max_work=_MAX_WORK))  # type: ignore[arg-type] # any work is allowed
    except np.exceptions.TooHardError:
        return bool(np.may_share_memory(*layouts))


class _Layout:
    """Addresses of the elements of a tensor, in the form in which NumPy can compare them; never read."""

    def __init__(self, thing: Thing) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{item_bytes(thing)}",
            "shape": tuple(thing.shape),
            "strides": byte_strides(thing),
            "data": (first_address(thing), True),
        }


def _range_of(thing: Thing) -> tuple[int, int]:
    """Return the address of the first byte of an array, and that after its last."""
    low = high = first_address(thing)
    for size, stride in zip(thing.shape, byte_strides(thing), strict=True):
        low, high = low + min(0, (size - 1) * stride), high + max(0, (size - 1) * stride)
    return low, high + item_bytes(thing)


class Ledger:
    """The blocks of memory met so far, in order, each with a label."""

    def __init__(self) -> None:
        self._blocks: list[Span] = []
        self._holders: list[Thing] = []

    def add(self, thing: Thing) -> int:
        """Return the index of the block of a thing; a new one, or an old one that may grow by it."""
        span = span_of(thing)
        for index, block in enumerate(self._blocks):
            if is_touching(span, block):
                self._blocks[index] = _joined(span, block)
                return index
        self._blocks.append(span)
        self._holders.append(thing)  # kept alive, so that no later storage gets its address
        return len(self._blocks) - 1

    def facts(self, thing: Thing, name: str) -> TensorFacts:
        """Return the facts of a tensor or array as it is now."""
        with unwatched():
            span, item, steps = span_of(thing), item_bytes(thing), byte_strides(thing)
            num = _num_elements(thing)
            return TensorFacts(
                name=name,
                shape=tuple(thing.shape),
                dtype=str(thing.dtype).removeprefix("torch."),
                device=span.device,
                stride=tuple(step // item for step in steps),
                offset=(first_address(thing) - span.start) // item if num else 0,
                memory=label(self.add(thing)),
                num_bytes=num * item,
                storage_bytes=span.num_bytes,
                is_contiguous=_is_contiguous(thing),
                expanded_axes=tuple(
                    axis
                    for axis, (size, step) in enumerate(zip(thing.shape, steps, strict=True))
                    if size > 1 and step == 0
                ),
                autograd=_autograd(thing),
            )


def label(index: int) -> str:
    """Return A, B ... Z, then A1, B1 ..."""
    turn, letter = divmod(index, 26)
    return chr(ord("A") + letter) + (str(turn) if turn else "")


def _joined(one: Span, two: Span) -> Span:
    start = min(one.start, two.start)
    return two._replace(
        start=start, num_bytes=max(one.start + one.num_bytes, two.start + two.num_bytes) - start
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
