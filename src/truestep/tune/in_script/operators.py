"""Operators on tensors, made visible to torch.profiler: `a @ b` is no call in Python, so it has no line.

Owns which operators these are. While the wrappers are in place each operator is a call of a Python function,
which the profiler sees with the line that it came from.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from truestep.watch.hooks.table import drop_frames, unseen

_TWO = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")
_NAMES = (
    *(f"__{side}{name}__" for name in _TWO for side in ("", "r", "i")),
    *(f"__{name}__" for name in ("lt", "le", "gt", "ge", "eq", "ne", "neg", "abs", "invert")),
    *(f"__{name}__" for name in ("getitem", "setitem", "bool", "float", "int", "index")),
)


@contextmanager
def visible_operators() -> Iterator[None]:
    """Let operators be calls while this lasts."""
    own = vars(torch.Tensor)
    before = {name: own.get(name) for name in _NAMES if hasattr(torch.Tensor, name)}
    for name in before:
        operator = getattr(torch.Tensor, name)
        setattr(torch.Tensor, name, unseen(_wrap(operator), operator))
    try:
        yield
    finally:
        for name, operator in before.items():
            if operator is None:  # a base class has it
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, operator)


def _wrap(operator: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(self: Any, *args: Any) -> Any:
        try:
            return operator(self, *args)
        except BaseException as error:
            drop_frames(error)
            raise

    return wrapper
