"""Copies of tensors and arrays that share memory among themselves exactly as the originals do.

An expression that writes in place can so be run without touching what the user gave.
"""

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._tensor_str import get_printoptions

from truestep.base.rng import kept_generators
from truestep.tensor.memory import Ledger, Span, Thing, byte_strides, first_address, span_of


class _Computed(torch.autograd.Function):
    """Makes a tensor a result instead of a leaf, in the same memory, so that it may be written to."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor) -> Tensor:  # noqa: ARG004 - torch's signature
        return _laid_out(leaf, leaf.untyped_storage())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # noqa: ARG004 - torch's signature
        return grads[0]


def copy_sharing(things: Mapping[str, Thing]) -> dict[str, Thing]:
    """Copy named things: the same values, strides, offsets, and the same sharing among them.

    >>> x = torch.zeros(2, 3)
    >>> copies = copy_sharing({"x": x, "row": x[0]})
    >>> _ = copies["row"].fill_(1.0)
    >>> copies["x"].sum().item(), x.sum().item()
    (3.0, 0.0)
    """
    ledger = Ledger()
    for thing in things.values():
        ledger.add(thing)
    made: dict[int, Any] = {}  # by index of the block
    copies: dict[int, Thing] = {}  # by id: two names for one tensor stay so
    for thing in things.values():
        index, block = ledger.block(thing)
        if index not in made:
            made[index] = _copied(block) if block.device == "cpu" else _storage(thing).clone()
        if id(thing) not in copies:
            copies[id(thing)] = _copy(thing, made[index], block)
    return {name: copies[id(thing)] for name, thing in things.items()}


def _storage(thing: Thing) -> Any:
    assert isinstance(thing, Tensor), "arrays are on the CPU"
    return thing.untyped_storage()


def _copied(block: Span) -> "np.ndarray[Any, Any]":
    buffer = np.zeros(block.num_bytes, dtype=np.uint8)
    ctypes.memmove(buffer.ctypes.data, block.start, block.num_bytes)
    return buffer


def _copy(thing: Thing, made: Any, block: Span) -> Thing:
    if not isinstance(thing, Tensor):
        offset = first_address(thing) - block.start if thing.size else 0
        array: np.ndarray[Any, Any] = np.ndarray(thing.shape, thing.dtype, made, offset, byte_strides(thing))
        array.flags.writeable = thing.flags.writeable
        return array
    if isinstance(made, np.ndarray):
        span = span_of(thing)
        at = span.start - block.start
        made = torch.from_numpy(made[at : at + span.num_bytes]).untyped_storage()
    copy = _laid_out(thing, made)
    if not thing.requires_grad:
        return copy
    if isinstance(thing, nn.Parameter):
        return nn.Parameter(copy)
    copy.requires_grad_()
    if thing.is_leaf:
        return copy
    with torch.enable_grad():
        computed: Tensor = _Computed.apply(copy)  # type: ignore[no-untyped-call]
        return computed


def _laid_out(like: Tensor, storage: Any) -> Tensor:
    with torch.no_grad():
        made = torch.empty(0, dtype=like.dtype, device=like.device)
        made.set_(storage, like.storage_offset(), tuple(like.shape), tuple(like.stride()))
        if like.is_conj():
            made = made.conj()
        return torch._neg_view(made) if like.is_neg() else made


@contextmanager
def undisturbed() -> Iterator[None]:
    """Leave generators, gradient mode, default dtype and print options as they were, whatever happens."""
    has_grad, dtype, printing = torch.is_grad_enabled(), torch.get_default_dtype(), get_printoptions()
    try:
        with kept_generators(), np.printoptions():
            yield
    finally:
        torch.set_printoptions(**printing)
        torch.set_grad_enabled(has_grad)
        torch.set_default_dtype(dtype)
