"""Tensors in whatever a model is given or returns: tuples, mappings, dataclasses, one in the other.

Owns the walk. What is done with the tensors is up to others.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor


def tensors_in(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in nested tuples, lists, mappings and dataclasses, each with its path.

    >>> import torch
    >>> [path for path, _ in tensors_in((torch.ones(1), {"h": [torch.ones(1)]}))]
    ['0', '1.h.0']
    """
    if isinstance(value, Tensor):
        yield path, value
        return
    pairs: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        pairs = value.items()
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        pairs = zip(value._fields, value, strict=True)
    elif isinstance(value, tuple | list):
        pairs = enumerate(value)
    elif is_dataclass(value) and not isinstance(value, type):
        pairs = [(part.name, getattr(value, part.name)) for part in fields(value)]
    for key, item in pairs:
        yield from tensors_in(item, f"{path}.{key}" if path else str(key))
