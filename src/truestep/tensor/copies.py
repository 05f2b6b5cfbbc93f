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
from truestep.tensor.memory import Span, Thing, byte_strides, first_address, is_touching, span_of


class _Arrived(torch.autograd.Function):
    """Gives the copy of a computed tensor the standing of one: no leaf, so it may be written to."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor) -> Tensor:  # noqa: ARG004 - torch's signature
        return _alias(leaf, leaf.untyped_storage(), like=leaf)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # noqa: ARG004 - torch's signature
        return grads[0]


def _alias(tensor: Tensor, storage: Any, *, like: Tensor) -> Tensor:
    with torch.no_grad():
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        made.set_(storage, like.storage_offset(), tuple(like.shape), tuple(like.stride()))
        if like.is_conj():
            made = made.conj()
        return torch._neg_view(made) if like.is_neg() else made


class _Copier:
    """Copies each block of memory once, and lays tensors and arrays into the copies."""

    def __init__(self, things: list[Thing]) -> None:
        self._blocks: list[list[Span]] = []
        self._copies: dict[int, Any] = {}
        self._tensors: dict[int, Tensor] = {}
        for thing in things:
            self._note(span_of(thing))
            if isinstance(thing, Tensor) and thing._is_view() and thing._base is not None:
                self._note(span_of(thing._base))
        self._kept = things

    def _note(self, span: Span) -> None:
        touching = [block for block in self._blocks if any(is_touching(span, other) for other in block)]
        merged = [span, *(other for block in touching for other in block)]
        self._blocks = [block for block in self._blocks if block not in touching] + [merged]

    def _block(self, span: Span) -> tuple[int, list[Span]]:
        for index, block in enumerate(self._blocks):
            if any(is_touching(span, other) for other in block):
                return index, block
        raise AssertionError("every span was noted")

    def storage(self, tensor: Tensor) -> Any:
        span = span_of(tensor)
        index, block = self._block(span)
        if len({(other.start, other.num_bytes) for other in block}) == 1 and not self._has_arrays(span):
            return self._copies.setdefault(index, tensor.untyped_storage().clone())
        buffer, start = self._buffer(index, block)
        part = buffer[span.start - start : span.start - start + span.num_bytes]
        return torch.from_numpy(part).untyped_storage()

    def _has_arrays(self, span: Span) -> bool:
        return any(
            not isinstance(thing, Tensor) and is_touching(span_of(thing), span) for thing in self._kept
        )

    def _buffer(self, index: int, block: list[Span]) -> tuple[Any, int]:
        start = min(span.start for span in block)
        if index not in self._copies:
            buffer = np.zeros(max(span.start + span.num_bytes for span in block) - start, dtype=np.uint8)
            for span in block:
                ctypes.memmove(buffer.ctypes.data + span.start - start, span.start, span.num_bytes)
            self._copies[index] = buffer
        return self._copies[index], start

    def array(self, array: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
        buffer, start = self._buffer(*self._block(span_of(array)))
        copy: np.ndarray[Any, Any] = np.ndarray(
            array.shape,
            array.dtype,
            buffer,
            first_address(array) - start if array.size else 0,
            byte_strides(array),
        )
        copy.flags.writeable = array.flags.writeable
        return copy

    def tensor(self, tensor: Tensor) -> Tensor:
        if id(tensor) not in self._tensors:
            self._tensors[id(tensor)] = self._make(tensor)
        return self._tensors[id(tensor)]

    def _make(self, tensor: Tensor) -> Tensor:
        base = tensor._base if tensor._is_view() else None
        same_kind = base is not None and base.dtype == tensor.dtype and base.is_conj() == tensor.is_conj()
        same_grad = base is not None and base.requires_grad == tensor.requires_grad
        if base is not None and same_kind and same_grad and base.is_neg() == tensor.is_neg():
            # Through the base, so that writing to one also tells autograd about the other.
            with torch.set_grad_enabled(tensor.requires_grad):
                return self.tensor(base).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        made = _alias(tensor, self.storage(tensor), like=tensor)
        if not tensor.requires_grad:
            return made
        made.requires_grad_()
        if not tensor.is_leaf:
            with torch.enable_grad():
                arrived: Tensor = _Arrived.apply(made)  # type: ignore[no-untyped-call]
                return arrived
        if isinstance(tensor, nn.Parameter):
            made = nn.Parameter(made)
        if tensor.grad is not None:
            made.grad = tensor.grad.detach().clone()
        return made


def copy_sharing(things: Mapping[str, Thing]) -> dict[str, Thing]:
    """Copy named things: the same values, strides, offsets, and the same sharing among them.

    >>> x = torch.zeros(2, 3)
    >>> copies = copy_sharing({"x": x, "row": x[0]})
    >>> _ = copies["row"].fill_(1.0)
    >>> copies["x"].sum().item(), x.sum().item()
    (3.0, 0.0)
    """
    copier = _Copier(list(things.values()))
    return {
        name: copier.tensor(thing) if isinstance(thing, Tensor) else copier.array(thing)
        for name, thing in things.items()
    }


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
