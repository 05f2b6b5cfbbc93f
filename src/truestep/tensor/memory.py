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

from truestep.tensor.facts import Memory, Sharing, TensorFacts, Value

Thing = Tensor | np.ndarray[Any, np.dtype[Any]]

MAX_VALUES = 256
UNUSABLE = "no longer usable"
_MAX_COUNTED = 1 << 16
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
    low, high = _byte_bounds(owner)
    return Span("cpu", low, high - low if owner.size else 0, id(owner))


def _byte_bounds(array: "np.ndarray[Any, Any]") -> tuple[int, int]:
    low = high = array.__array_interface__["data"][0]
    for size, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            low += (size - 1) * stride
        else:
            high += (size - 1) * stride
    return low, high + array.itemsize


def is_same_memory(first: Thing, second: Thing) -> bool:
    """Whether two things live in one storage or buffer, whether or not their elements meet."""
    return is_touching(span_of(first), span_of(second))


def is_touching(one: Span, two: Span) -> bool:
    """Whether two spans have a byte in common; without any byte, whether they are one storage."""
    if one.num_bytes == 0 or two.num_bytes == 0:
        return one.key == two.key and one.num_bytes == two.num_bytes
    is_before = one.start < two.start + two.num_bytes
    return one.device == two.device and is_before and two.start < one.start + one.num_bytes


class _Layout:
    """Addresses of the elements of a tensor, in the form in which NumPy can compare them; never read."""

    def __init__(self, thing: Thing) -> None:
        item = item_bytes(thing)
        shape, stride, address = tuple(thing.shape), byte_strides(thing), first_address(thing)
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{item}",
            "shape": shape,
            "strides": stride,
            "data": (address, True),
        }


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


def _element_addresses(thing: Thing) -> "np.ndarray[Any, np.dtype[np.int64]]":
    addresses = np.full((1,) * len(thing.shape), first_address(thing), dtype=np.int64)
    for axis, (size, step) in enumerate(zip(thing.shape, byte_strides(thing), strict=True)):
        places = np.arange(size, dtype=np.int64) * step
        addresses = addresses + places.reshape([-1 if at == axis else 1 for at in range(len(thing.shape))])
    return addresses.reshape(-1)


def _num_shared(first: Thing, second: Thing) -> int:
    """Return how many elements of the second have a byte in the first; those that are one cell count once."""
    owned = _element_addresses(first)[:, None] + np.arange(item_bytes(first))
    asked = np.unique(_element_addresses(second))[:, None] + np.arange(item_bytes(second))
    return int(np.isin(asked, owned).any(axis=1).sum())


def sharing_of(first: tuple[str, Thing], second: tuple[str, Thing]) -> Sharing:
    """Compare two things, given with their names: do they live in one memory, do elements meet."""
    (name, one), (other, two) = first, second
    is_same, is_overlapping, is_exact, num_shared = is_same_memory(one, two), False, True, None
    sizes = _num_elements(one), _num_elements(two)
    if not is_same or 0 in sizes or span_of(one).num_bytes == 0:
        num_shared = 0
    elif max(sizes) <= _MAX_COUNTED:
        num_shared = _num_shared(one, two)
        is_overlapping = num_shared > 0
    else:
        layouts = np.asarray(_Layout(one)), np.asarray(_Layout(two))
        try:
            is_overlapping = np.shares_memory(*layouts, max_work=_MAX_WORK)  # type: ignore[arg-type] # any work is allowed
        except np.exceptions.TooHardError:
            is_overlapping, is_exact = np.may_share_memory(*layouts), False
    return Sharing(
        first=name,
        second=other,
        is_same_memory=is_same,
        is_overlapping=bool(is_overlapping),
        is_exact=is_exact,
        num_shared=num_shared,
        is_one=one is two,
    )


def _dtype_name(thing: Thing) -> str:
    return str(thing.dtype).removeprefix("torch.")


def values_of(thing: Thing) -> tuple[Value, ...] | None:
    """Return the elements in reading order; None if there are more than `MAX_VALUES`."""
    if _num_elements(thing) > MAX_VALUES or str(getattr(thing, "device", "cpu")) == "meta":
        return None
    with unwatched(), torch.no_grad():
        if isinstance(thing, Tensor):
            values: list[Value] = thing.detach().resolve_conj().resolve_neg().reshape(-1).tolist()
        else:
            values = thing.reshape(-1).tolist()
    return tuple(values)


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
            index = self.add(thing)
            first_byte = first_address(thing) - self._blocks[index].start if _num_elements(thing) else 0
            common: dict[str, Any] = {
                "name": name,
                "shape": tuple(thing.shape),
                "dtype": _dtype_name(thing),
                "memory": label(index),
                "first_byte": first_byte,
                "item_bytes": item_bytes(thing),
                "num_bytes": _num_elements(thing) * item_bytes(thing),
                "storage_bytes": span_of(thing).num_bytes,
                "expanded_axes": _expanded_axes(thing),
                "values": values_of(thing),
            }
            return TensorFacts(
                **common, **(_of_tensor(thing) if isinstance(thing, Tensor) else _of_array(thing))
            )

    def block(self, thing: Thing) -> tuple[int, Span]:
        """Return the block of a thing that was added, with its index."""
        index = self.add(thing)
        return index, self._blocks[index]

    def memories(self) -> list[Memory]:
        """Return every block as it is now."""
        return [
            Memory(label=label(index), device=block.device, num_bytes=block.num_bytes)
            for index, block in enumerate(self._blocks)
        ]


def label(index: int) -> str:
    """Return A, B ... Z, then A1, B1 ..."""
    turn, letter = divmod(index, 26)
    return chr(ord("A") + letter) + (str(turn) if turn else "")


def _joined(one: Span, two: Span) -> Span:
    start = min(one.start, two.start)
    return two._replace(
        start=start, num_bytes=max(one.start + one.num_bytes, two.start + two.num_bytes) - start
    )


def _expanded_axes(thing: Thing) -> tuple[int, ...]:
    pairs = zip(thing.shape, byte_strides(thing), strict=True)
    return tuple(axis for axis, (size, step) in enumerate(pairs) if size > 1 and step == 0)


def grad_fn_name(tensor: Tensor) -> str | None:
    """Return what autograd has recorded for a tensor; None for a leaf."""
    try:
        return None if tensor.grad_fn is None else type(tensor.grad_fn).__name__
    except RuntimeError:
        # One of several views that one call gave: torch refuses to use it once its base was written to.
        return UNUSABLE


def _of_tensor(tensor: Tensor) -> dict[str, Any]:
    is_image = tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return {
        "kind": "parameter" if isinstance(tensor, torch.nn.Parameter) else "tensor",
        "device": str(tensor.device),
        "stride": tuple(tensor.stride()),
        "offset": tensor.storage_offset(),
        "is_contiguous": tensor.is_contiguous(),
        "is_channels_last": is_image and not tensor.is_contiguous(),
        "requires_grad": tensor.requires_grad,
        "is_leaf": grad_fn_name(tensor) is None,
        "grad_fn": grad_fn_name(tensor),
        "is_conj": tensor.is_conj(),
        "is_neg": tensor.is_neg(),
    }


def _of_array(array: "np.ndarray[Any, Any]") -> dict[str, Any]:
    start, item = span_of(array).start, max(array.itemsize, 1)
    flags = ("is_channels_last", "requires_grad", "is_conj", "is_neg")
    return {
        "kind": "array",
        "device": "cpu",
        "stride": tuple(step // item for step in array.strides),
        "offset": (first_address(array) - start) // item if array.size else 0,
        "is_contiguous": array.flags.c_contiguous,
        "is_leaf": True,
        "grad_fn": None,
        **dict.fromkeys(flags, False),
    }
