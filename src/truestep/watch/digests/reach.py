"""Tensors that can be reached from something: through containers, modules, closures and plain objects.

Owns the walk and the names, as the user would write them. Runs no code of the user's.
"""

import functools
import gc
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import (
    BuiltinMethodType,
    CodeType,
    FrameType,
    FunctionType,
    GeneratorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    TracebackType,
)
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from truestep.watch.script.sites import Sites

Kept = Tensor | npt.NDArray[Any]
Found = dict[str, list[Kept]]
"""Tensors by name. Several share one where it says too little, as in a set."""
Named = Iterable[tuple[str, Any]]

IN_SET = ".{}"
"""What stands in a name for the elements of a set, which have no order."""
_MAX_DEPTH = 4
"""How far objects of other packages are looked into. The user's own, and containers, have no end."""
_MAX_ITEMS = 1024
"""Of a longer container so many of the first items are looked at, of the last, and of the others in turn."""
_HELD_BY_MODULES = ("_parameters", "_buffers", "_modules")
_PLAIN = frozenset({int, float, str, bool, bytes, complex, type(None), torch.dtype, torch.device})
_CLOSED = _PLAIN | {ModuleType, CodeType, FrameType, TracebackType}
"""What holds no tensors of the user's, or all of them once more."""
_FOREIGN = frozenset({"torch", "truestep", "numpy"})
"""Packages whose objects are not looked into. Modules and tensors of theirs are."""
_IN_FLIGHT = frozenset(
    {"asyncio", "concurrent", "multiprocessing", "queue", "threading", "_queue", "_thread"}
)
"""What these hold is on its way from one thread to another: how far it has come depends on the moment."""
_LOOKED_INTO = ("torch.amp.", "torch.distributions.", "torch.optim.", "torch.utils.data.dataset")
"""Parts of torch whose objects hold tensors of the user's."""
_CONTAINERS = frozenset({"builtins", "collections", "functools", "itertools"})
_HOLDERS = (functools.partial, MethodType, BuiltinMethodType, GeneratorType)


class Walk:
    """Goes through what variables hold; each tensor is found once, under its first name.

    With sites the user's own functions and classes are looked into, and what may hold a measured time is left
    out: arrays, and single numbers outside of modules. Of what is saved, without sites, all counts.
    Of long containers all is looked at, or what the `turn` brings.
    """

    def __init__(self, sites: Sites | None = None, *, turn: int | None = None) -> None:
        self._sites = sites
        self._turn = turn
        self._seen: set[int] = set()
        self._owners: dict[type, bool] = {}
        self._parts: dict[int, Kept] = {}
        self.found: Found = {}

    def add(self, prefix: str, variables: Mapping[Any, Any]) -> None:
        """Find the tensors in variables and in what they hold."""
        waiting = [(f"{prefix}{name}", value, 0, False) for name, value in reversed([*variables.items()])]
        while waiting:
            name, value, depth, is_part = waiting.pop()
            kind = type(value)  # what an object says of its class may be code of the user's
            if kind in _CLOSED or id(value) in self._seen:
                continue
            self._seen.add(id(value))
            inner: list[tuple[str, Any]] = []
            if _is_leaf(value, kind):
                if self._counts(value, is_part=is_part):
                    self.found.setdefault(name, []).append(value)
                    self._parts |= {id(value): value} if is_part else {}
                inner = [*_attributes(value)] if issubclass(kind, Tensor) else []
            elif depth <= _MAX_DEPTH:
                inner = [*self._inside(value, kind)]
            is_part = issubclass(kind, nn.Module)
            deeper = depth + (not is_part and (depth > 0 or not self._is_own(kind)))
            waiting += [(f"{name}{key}", item, deeper, is_part) for key, item in reversed(inner)]

    def without_copies(self) -> Found:
        """Return what was found, but for other names of a module's tensors.

        A `state_dict()` shares their memory, one that was loaded from a file does not.
        """
        with torch._C.DisableTorchFunctionSubclass():
            known = {memory_of(item) for item in self._parts.values()}
            left = {
                name: [item for item in items if id(item) in self._parts or memory_of(item) not in known]
                for name, items in self.found.items()
            }
        return {name: items for name, items in left.items() if items}

    def _counts(self, value: Kept, *, is_part: bool) -> bool:
        if isinstance(value, Tensor) and nn.parameter.is_lazy(value):
            return False
        with torch._C.DisableTorchFunctionSubclass():
            return self._sites is None or (isinstance(value, Tensor) and (is_part or value.numel() > 1))

    def _is_own(self, kind: type) -> bool:
        """Whether a class is the user's own, or one of containers. All that is saved is the user's own."""
        if self._sites is None or kind.__module__ in _CONTAINERS:
            return True
        if kind not in self._owners:
            file = getattr(sys.modules.get(kind.__module__), "__dict__", {}).get("__file__")
            is_main = kind.__module__ == "__main__"
            self._owners[kind] = is_main or (isinstance(file, str) and self._sites.is_own(file))
        return self._owners[kind]

    def _inside(self, value: Any, kind: type) -> Named:
        """Return what lies in something, with what is added to its name."""
        for kinds, look in _WAYS:
            if issubclass(kind, kinds):
                return self._chosen(look(value))
        if issubclass(kind, FunctionType):
            is_own = self._sites is not None and self._sites.is_own(value.__code__.co_filename)
            return _inside_function(value) if is_own else ()
        if issubclass(kind, type):
            is_own = self._sites is not None and self._is_own(value) and value.__module__ not in _CONTAINERS
            return [(f".{name}", item) for name, item in list(vars(value).items())] if is_own else ()
        package = kind.__module__.partition(".")[0]
        is_closed = package in _IN_FLIGHT or (
            package in _FOREIGN and not kind.__module__.startswith(_LOOKED_INTO)
        )
        return () if is_closed else [*_attributes(value), *_referents(value)]

    def _chosen(self, items: Named) -> list[tuple[str, Any]]:
        items = list(items)
        if self._turn is None or len(items) <= 3 * _MAX_ITEMS:
            return items
        middle = len(items) - 2 * _MAX_ITEMS
        begin = _MAX_ITEMS + self._turn * _MAX_ITEMS % middle
        return items[:_MAX_ITEMS] + items[begin : begin + _MAX_ITEMS] + items[-_MAX_ITEMS:]


def memory_of(item: Kept) -> object:
    """Return what two tensors have in common that show the same memory; of one that has none, itself."""
    if not isinstance(item, Tensor):
        return id(item)
    try:
        place = item.data_ptr()
        return (place, item.shape, item.stride(), item.dtype) if place else id(item)
    except (RuntimeError, NotImplementedError, ValueError, TypeError):  # sparse, or a class of the user's
        return id(item)


def _is_leaf(value: Any, kind: type) -> bool:
    return issubclass(kind, Tensor) or (issubclass(kind, np.ndarray) and not value.dtype.hasobject)


def _inside_module(value: Any) -> Iterator[tuple[str, Any]]:
    for name, item in list(vars(value).items()):
        if name in _HELD_BY_MODULES:
            yield from ((f".{key}", part) for key, part in list(item.items()))
        else:
            yield f".{name}", item


def _inside_optimizer(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield all but the parameters and their state, which are compared as such."""
    attributes = dict(vars(value))
    owned = {id(item) for group in attributes.pop("param_groups", ()) for item in group["params"]}
    state = list(dict.items(attributes.pop("state", {})))
    yield from _keyed((key, item) for key, item in state if id(key) not in owned)
    yield from ((f".{name}", item) for name, item in attributes.items())


def _inside_function(value: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
        yield from ((f".{name}", item) for item in gc.get_referents(cell))
    yield ".__defaults__", value.__defaults__
    yield ".__kwdefaults__", value.__kwdefaults__
    yield from ((f".{name}", item) for name, item in list(vars(value).items()))


def _keyed(items: Iterable[tuple[Any, Any]]) -> Iterator[tuple[str, Any]]:
    """Name items by their keys; by their place, if a key is an object whose text is its own affair."""
    for place, (key, item) in enumerate(items):
        is_plain = type(key) in _PLAIN or (type(key) is tuple and all(type(part) in _PLAIN for part in key))
        yield f".{key}" if is_plain else f".{type(key).__name__} {place}", item


def _listed(items: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    return ((f".{place}", item) for place, item in enumerate(items))


def _referents(value: Any) -> list[tuple[str, Any]]:
    """Return what Python's collector finds in an object: what slots and types written in C hold."""
    own = _dict_of(value)
    return [*_listed(item for item in gc.get_referents(value) if item is not own)]


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object holds by name, past its own ways of handing it out."""
    yield from ((f".{name}", item) for name, item in list(_dict_of(value).items()))
    for base in type(value).__mro__ if not isinstance(value, Tensor) else ():
        for name, slot in list(vars(base).items()):
            if type(slot) is MemberDescriptorType and base.__module__ not in _CONTAINERS:
                try:
                    yield f".{name}", slot.__get__(value, base)
                except AttributeError:  # nothing was put there
                    continue


def _dict_of(value: Any) -> dict[str, Any]:
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


_WAYS: tuple[tuple[Any, Callable[[Any], Named]], ...] = (
    (nn.Module, _inside_module),
    (Optimizer, _inside_optimizer),
    (DataLoader, lambda value: [(".dataset", _dict_of(value).get("dataset"))]),
    (dict, lambda value: _keyed(list(dict.items(value)))),
    ((list, tuple, deque), lambda value: _listed(list(value))),
    (np.ndarray, lambda value: _listed(value.ravel().tolist())),
    ((set, frozenset), lambda value: ((IN_SET, item) for item in list(value))),
    (_HOLDERS, _referents),
)
"""How each kind is looked into. What is in none of them are functions, classes and plain objects."""
