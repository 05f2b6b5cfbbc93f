"""Parts of models as torch has registered them: modules, parameters and buffers.

Owns the walk. It calls no method of the model's: those may be the user's own, which print, count or fail.
"""

from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")
LARGE = 20_000_000
"""Parameters and buffers of a model from which on it is not copied, and its backward pass is not noted."""


def named_modules(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield a model and all modules in it with their paths, each once, in torch's own order."""
    met: set[int] = set()
    waiting = [("", root)]
    while waiting:
        path, module = waiting.pop()
        if id(module) in met:
            continue
        met.add(id(module))
        yield path, module
        inner = [
            (f"{path}.{name}" if path else name, item)
            for name, item in _registered(module, "_modules")
            if item is not None
        ]
        waiting += reversed(inner)


def is_training(module: nn.Module) -> bool:
    """Whether a module is in train mode. A frozen script module has no mode any more: it evaluates."""
    return bool(getattr(module, "training", False))


def modules(root: nn.Module) -> Iterator[nn.Module]:
    """Yield a model and all modules in it."""
    return (module for _, module in named_modules(root))


def named_parameters(root: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield all parameters of a model with their paths, each once."""
    return _named_tensors(root, "_parameters")


def parameters(root: nn.Module) -> Iterator[nn.Parameter]:
    """Yield all parameters of a model."""
    return (item for _, item in named_parameters(root))


def named_buffers(root: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield all buffers of a model with their paths, each once."""
    return _named_tensors(root, "_buffers")


def buffers(root: nn.Module) -> Iterator[Tensor]:
    """Yield all buffers of a model."""
    return (item for _, item in named_buffers(root))


def _named_tensors(root: nn.Module, kind: str) -> Iterator[tuple[str, Any]]:
    met: set[int] = set()
    for path, module in named_modules(root):
        for name, item in _registered(module, kind):
            if item is not None and id(item) not in met:
                met.add(id(item))
                yield f"{path}.{name}" if path else name, item


def _registered(module: nn.Module, kind: str) -> list[tuple[str, Any]]:
    found = vars(module).get(kind)  # none in a class of the user's that has not called `super().__init__()`
    return [] if found is None else list(found.items())


def spread(items: list[T], most: int) -> list[T]:
    """Return at most so many items, from all over a list."""
    return items[:: max(1, len(items) // most)][:most]


def is_plain(tensor: Any) -> bool:
    """Whether it is no subclass of a tensor, not sparse, and has values."""
    return type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided and not tensor.is_meta
