"""Copies of tensors and arrays, with which an expression may do what it wants.

Tensors share memory among themselves as the originals do; an array is copied alone.
"""

import copy
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from truestep.base.rng import kept_generators
from truestep.errors import UsageError
from truestep.tensor.memory import Thing, is_same_memory


class _Computed(torch.autograd.Function):
    """Makes a tensor a result instead of a leaf, in the same memory, so that it may be written to."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor) -> Tensor:  # noqa: ARG004 - torch's signature
        made = torch.empty(0, dtype=leaf.dtype, device=leaf.device)
        return made.set_(leaf.untyped_storage(), leaf.storage_offset(), leaf.shape, leaf.stride())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # noqa: ARG004 - torch's signature
        return grads[0]


def copy_sharing(things: Mapping[str, Thing]) -> dict[str, Thing]:
    """Copy named things: the same values and strides, and the same sharing among tensors.

    >>> x = torch.zeros(2, 3)
    >>> copies = copy_sharing({"x": x, "row": x[0]})
    >>> _ = copies["row"].fill_(1.0)
    >>> copies["x"].sum().item(), x.sum().item()
    (3.0, 0.0)
    """
    for name, thing in things.items():
        if isinstance(thing, Tensor):
            continue
        for other, another in things.items():
            if another is not thing and is_same_memory(thing, another):
                raise UsageError(
                    f"{name} is an array that shares memory with {other}, so they cannot be copied together. "
                    f"Make it inside the code: {name} = {other}.numpy()"
                )
    plain = {id(thing): thing.detach() if isinstance(thing, Tensor) else thing for thing in things.values()}
    copies = copy.deepcopy(plain)  # all at once: views of one storage stay so
    made = {id(thing): _with_autograd(copies[id(thing)], like=thing) for thing in things.values()}
    return {name: made[id(thing)] for name, thing in things.items()}


def _with_autograd(made: Thing, *, like: Thing) -> Thing:
    if not isinstance(made, Tensor) or not isinstance(like, Tensor) or not like.requires_grad:
        return made
    if isinstance(like, nn.Parameter):
        return nn.Parameter(made)
    made.requires_grad_()
    if like.is_leaf:
        return made
    with torch.enable_grad():
        computed: Tensor = _Computed.apply(made)  # type: ignore[no-untyped-call]
        return computed


@contextmanager
def undisturbed() -> Iterator[None]:
    """Leave generators, gradient mode and default dtype as they were, and warn of nothing."""
    has_grad, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    try:
        with kept_generators(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_grad_enabled(has_grad)
        torch.set_default_dtype(dtype)
