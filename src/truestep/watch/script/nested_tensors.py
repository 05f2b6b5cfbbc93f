"""Tensors in whatever a loader hands out or a model is given.

Owns the walk over nests. Reads attributes of plain containers only; runs no code of the user's.
"""

from collections import UserDict
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from itertools import islice
from typing import Any

import torch
from torch import Tensor

_MAX_TENSORS = 8
_FEW = 4
_MAX_DEPTH = 6
_MAX_OBJECTS = 2
_MAX_ITEMS = 1024
_LEAVES = (Tensor, str, bytes, bool, int, float, complex)
_SCALARS = frozenset((type(None), *_LEAVES[1:]))

_READ = (
    *("shape", "dtype", "device", "layout", "size", "dim", "ndim", "numel", "stride", "data", "detach"),
    *("requires_grad", "is_leaf", "grad", "grad_fn", "_version", "untyped_storage", "data_ptr"),
    *("is_floating_point", "is_complex", "is_nested", "is_cpu", "is_cuda", "element_size"),
    *("__getattribute__", "__hash__", "__eq__"),
)
"""What observers ask of tensors."""

_tracing, _functorch = torch._guards.TracingContext.try_get, torch._C._functorch.peek_interpreter_stack
Leaf = Tensor | str | bytes | bool | int | float | complex | None


def outline(values: Any) -> tuple[Any, ...]:
    """Return shape and dtype of the first few tensors: hashable, and quick for the usual pair."""
    try:
        if type(values) is tuple and len(values) == 1 and not torch._C._len_torch_function_stack():
            (leaf,) = values
            if type(leaf) is Tensor:
                return ((leaf.shape, leaf.dtype),)
        with torch._C.DisableTorchFunction():
            return _outline(values)
    except Exception:  # noqa: BLE001 - nested tensors have no shape; a class of the user's may raise anything
        return ()


def _outline(values: Any) -> tuple[Any, ...]:
    if type(values) in (tuple, list) and len(values) <= _FEW:
        found = [(leaf.shape, leaf.dtype) if is_readable(leaf) else None for leaf in values]
        if found and found[0] is not None:
            return tuple(found)
    values = values.data if isinstance(values, UserDict) else values
    if type(values) is dict and len(values) <= _MAX_TENSORS:
        named = [(f".{key}", leaf.shape, leaf.dtype) for key, leaf in values.items() if type(leaf) is Tensor]
        if len(named) == len(values):
            return tuple(named)
    few = islice(find_tensors(values), _MAX_TENSORS)
    return tuple((name, leaf.shape, leaf.dtype) for name, leaf in few)


def no_user_overrides() -> AbstractContextManager[Any]:
    """Return a context in which torch calls no `__torch_function__` and no mode of the user's.

    Modes are lifted where there are any beside the recorder's own, which is set aside: that takes a while.
    """
    num = torch._C._len_torch_dispatch_stack()
    if num > 1 or (num and not hasattr(torch._C._get_dispatch_stack_at(0), "is_aside")):
        return without_modes()
    return torch._C.DisableTorchFunction()


@contextmanager
def without_modes() -> Iterator[None]:
    """Have no mode on, neither the user's nor the recorder's."""
    with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
        yield


def is_overridden(tensor: Tensor) -> bool:
    """Whether operations on it are the user's own, or another's: reading its values would call them."""
    return type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__


def has_value(gradient: Tensor) -> bool:
    """Whether a gradient is other than zero, or cannot be read."""
    if is_overridden(gradient) or gradient.is_meta:
        return True
    return bool((gradient._values() if gradient.layout == torch.sparse_coo else gradient).any())


def is_readable(value: Any) -> bool:
    """Whether it is a tensor whose shape and kind are no code of the user's."""
    return type(value) is Tensor or (isinstance(value, Tensor) and _has_torchs_attributes(type(value)))


@lru_cache(maxsize=256)
def _has_torchs_attributes(kind: type[Tensor]) -> bool:
    own = [base for base in kind.__mro__ if issubclass(base, Tensor) and base is not Tensor]
    own = [base for base in own if not base.__module__.startswith("torch.")]
    return not any(name in vars(base) for base in own for name in _READ)


def is_transformed() -> bool:
    """Whether `torch.func` or the compiler is at work: their tensors have no values, or sizes, to be read."""
    return _tracing() is not None or _functorch() is not None


def find_tensors(value: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a nest with their paths, as `walk` does.

    Reads no array of NumPy's, which may be large or lie in a file, and looks at the first items only.
    """
    waiting: list[tuple[str, Any, int]] = [("", value, 0)]
    for _ in range(_MAX_ITEMS):
        if not waiting:
            return
        name, item, depth = waiting.pop()
        if isinstance(item, Tensor):
            if is_readable(item):
                yield name, item
        elif type(item) not in _SCALARS and depth < _MAX_DEPTH:
            inner = [*islice(_inside(item, depth), _MAX_ITEMS)]
            inner.reverse()
            waiting += [(f"{name}.{key}", part, depth + 1) for key, part in inner]


def _inside(value: Any, depth: int) -> Iterable[tuple[Any, Any]]:
    """Return what lies in a container, or in an object that is not too deep in others."""
    if isinstance(value, dict):
        return dict.items(value)
    if isinstance(value, (list, tuple)):  # no union: that takes longer, and this is every batch
        return enumerate(value)
    if isinstance(value, UserDict):
        return dict.items(value.data)
    is_plain = depth <= _MAX_OBJECTS and type(value).__module__ != "numpy" and _is_plain(value)
    return vars(value).items() if is_plain else ()


def walk(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, Leaf]]:  # limits: recursive
    """Yield every tensor, text and number in a nest, with its path; mappings in their own order."""
    if value is None or isinstance(value, _LEAVES):
        yield name, value
    elif depth >= _MAX_DEPTH:
        return
    elif isinstance(value, dict | UserDict):
        for key, item in _items(value):
            yield from walk(item, f"{name}.{key}", depth + 1)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from walk(item, f"{name}.{index}", depth + 1)
    elif type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
        yield name, f"{value.dtype}{value.shape}"
        yield name, value.tobytes()
    elif depth <= _MAX_OBJECTS and _is_plain(value):
        for key, item in list(vars(value).items()):
            yield from walk(item, f"{name}.{key}", depth + 1)


def _items(value: "dict[Any, Any] | UserDict[Any, Any]") -> list[tuple[Any, Any]]:
    """Return what is stored, past a subclass's own ways of handing it out: those may make it, or draw."""
    return list(dict.items(value if isinstance(value, dict) else value.data))


def _is_plain(value: Any) -> bool:
    """Whether it is an object of the user's that may hold tensors, such as a dataclass."""
    return (
        hasattr(value, "__dict__") and not isinstance(value, torch.nn.Module | type) and not callable(value)
    )
