"""What a script keeps from step to step, one thing at a time: numbers, lists, arrays, generators, states.

Owns the walk, what counts as one thing, and how it is put back. They may hold the time, or what is only
printed, so that they explain a difference and never make one.
"""

import ctypes
import hashlib
import itertools
import pickle
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from io import BytesIO
from types import FrameType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from truestep.base.device import module_in_use
from truestep.watch.digests.fold import fold
from truestep.watch.digests.keeping import Holder, own_holders
from truestep.watch.script import module_tree
from truestep.watch.script.sites import Sites

_MAX_THINGS, _MAX_DEPTH, _MAX_CHARACTERS, _MAX_PARTS = 5000, 6, 40, 1 << 18
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_LISTS = (list, tuple, deque)
_SETS = (set, frozenset)
_ITERATORS: tuple[type, ...] = (
    type(iter([])),
    type(iter(range(0))),
    itertools.count,
    itertools.cycle,
    enumerate,
)
_FOREIGN = frozenset(
    {"torch", "truestep", "numpy", "threading", "multiprocessing", "queue", "asyncio", "pathlib", "re"}
)
_STATES = ((Optimizer, "optimizer"), (LRScheduler, "scheduler"), (torch.amp.GradScaler, "scaler"))
GENERATOR = "generator "
"""What stands before the name of a global generator."""

Put = Callable[[Any], None]


class Thing(NamedTuple):
    """One thing that a script keeps: its kind, what it is now, and how it is put back."""

    kind: str
    value: Any
    put: Put


class Things:
    """All things that can be reached from the script's variables, under their first names."""

    def __init__(self, sites: Sites, optimizers: Iterable[Optimizer]) -> None:
        self._sites = sites
        self._seen: dict[int, Any] = {id(group): group for one in optimizers for group in one.param_groups}
        self._waiting: deque[tuple[str, Any, Put | None, int]] = deque()
        self._owned = {
            id(item) for one in optimizers for group in one.param_groups for item in group["params"]
        }
        self._cells: set[str] = set()
        self._holders: dict[str, Callable[[str, Any], None]] = {}
        self.found: dict[str, Thing] = dict(_global_generators())
        for prefix, variables, holder in own_holders(sites):
            give = partial(_give, holder)
            self._holders[prefix.rstrip(".")] = give
            self._add_all(prefix, variables.items(), give, 0)
        self._walk()
        for number, item in enumerate(optimizers):
            self._take(f"optimizer {number}", item, None, 0)

    def put(self, name: str, value: Any) -> None:
        """Put a value back; what is not there yet is given to the object that should have it."""
        if name in self.found:
            self.found[name].put(value)
            return
        owner, _, last = name.rpartition(".")
        if owner in self._holders:
            self._holders[owner](last, value)

    def _add_all(  # limits: variables, and who takes others in their place
        self, prefix: str, items: Iterable[tuple[Any, Any]], give: Callable[[Any, Any], None], depth: int
    ) -> None:
        self._waiting += [(f"{prefix}{key}", item, partial(give, key), depth) for key, item in items]

    def _walk(self) -> None:
        while self._waiting and len(self.found) < _MAX_THINGS:
            with suppress(Exception):  # an object of the user's may be anything: it cannot be put back then
                self._take(*self._waiting.popleft())

    def _take(  # limits: as above
        self, name: str, value: Any, put: Put | None, depth: int
    ) -> None:
        if type(value) in _PLAIN:
            if put is not None:
                self.found.setdefault(name, Thing(self._kind(name), value, put))
            return
        if id(value) in self._seen or isinstance(value, ModuleType):
            return
        self._seen[id(value)] = value  # kept, so that no other gets its id
        thing = self._thing(name, value, put)
        if thing is not None:
            self.found.setdefault(name, thing)
        if isinstance(value, nn.Module):
            self._enter_module(name, value)
        elif thing is None and depth < _MAX_DEPTH:
            self._enter(name, value, depth + 1)

    def _kind(self, name: str) -> str:
        return "closure" if name in self._cells else "variable"

    def _thing(self, name: str, value: Any, put: Put | None) -> Thing | None:
        for kind, word, read, write in _GENERATORS:
            if isinstance(value, kind):
                return Thing(word, read(value), partial(write, value))
        for kind, word in _STATES:
            if isinstance(value, kind):
                return Thing(word, value.state_dict(), value.load_state_dict)
        if isinstance(value, nn.Module):
            return self._tensors_of(value)
        if isinstance(value, Tensor) and id(value) in self._owned:
            return None
        if not _is_whole(value, self._owned):
            return None
        return Thing(self._kind(name), value, _in_place(value, put))

    def _tensors_of(self, module: nn.Module) -> Thing | None:
        """Return what no optimizer owns of a module: buffers, or all of one that is not trained."""
        named = dict(module_tree.named_parameters(module))
        left = {name: item for name, item in named.items() if id(item) not in self._owned}
        kind = "module" if len(left) == len(named) else "buffers"
        held = left | dict(module_tree.named_buffers(module))
        held = {name: item for name, item in held.items() if not nn.parameter.is_lazy(item)}
        return Thing(kind, held, partial(_copy_all, held)) if held else None

    def _enter_module(self, name: str, module: nn.Module) -> None:
        for path, inner in module.named_modules():
            self._seen[id(inner)] = inner
            own = vars(inner)
            items = [item for item in own.items() if not item[0].startswith("_") and item[0] != "training"]
            owner = f"{name}.{path}" if path else name
            self._holders[owner] = partial(_give, own)
            self._add_all(f"{owner}.", items, partial(_give, own), 1)

    def _enter(self, name: str, value: Any, depth: int) -> None:
        """Look into what holds more than one thing."""
        if isinstance(value, dict):
            items = [(key, item) for key, item in list(value.items()) if type(key) in (str, int)]
            self._hold(name, items, partial(_give, value), depth)
        elif isinstance(value, _LISTS):
            give = partial(_give_item, value)
            self._add_all(f"{name}.", list(enumerate(value)), give, depth)
        elif isinstance(value, FunctionType | MethodType):
            self._enter_function(name, getattr(value, "__func__", value), depth)
        elif isinstance(value, type):
            if value.__module__ == "__main__" or self._is_own(value.__module__):
                items = [item for item in list(vars(value).items()) if not item[0].startswith("__")]
                self._hold(name, items, partial(setattr, value), depth)
        elif type(value).__module__.partition(".")[0] not in _FOREIGN:
            own = getattr(value, "__dict__", None)
            if type(own) is dict:
                self._hold(name, list(own.items()), partial(_give, own), depth)
            for key, slot, item in _slots(value):
                self._waiting.append((f"{name}.{key}", item, partial(slot.__set__, value), depth))

    def _hold(  # limits: as above
        self, name: str, items: list[tuple[Any, Any]], give: Callable[[Any, Any], None], depth: int
    ) -> None:
        self._holders[name] = give
        self._add_all(f"{name}.", items, give, depth)

    def _enter_function(self, name: str, function: Any, depth: int) -> None:
        code = getattr(function, "__code__", None)
        if code is None or not self._sites.is_own(code.co_filename):
            return
        cells = zip(code.co_freevars, function.__closure__ or (), strict=False)
        for key, cell in cells:
            try:
                item = cell.cell_contents
            except ValueError:  # nothing was put there
                continue
            self._cells.add(f"{name}.{key}")
            self._waiting.append((f"{name}.{key}", item, partial(setattr, cell, "cell_contents"), depth))
        for place, item in enumerate(function.__defaults__ or ()):
            self._waiting.append((f"{name}.default {place}", item, None, depth))
        self._add_all(f"{name}.", list(vars(function).items()), partial(_give, vars(function)), depth)

    def _is_own(self, module: str) -> bool:
        file = getattr(sys.modules.get(module), "__file__", None)
        return isinstance(file, str) and self._sites.is_own(file)


def describe(thing: Thing) -> str:
    """Return what tells a thing from others, in few words."""
    value = thing.value
    if type(value) in _PLAIN:
        text = repr(value)
        return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]} {digest(value)}"
    if isinstance(value, Tensor | np.ndarray | np.generic):
        num = value.numel() if isinstance(value, Tensor) else value.size
        return repr(value.item()) if num == 1 else f"array {tuple(value.shape)} {digest(value)}"
    if thing.kind in ("variable", "closure") and isinstance(value, (dict, *_LISTS, *_SETS)):
        return f"{len(value)} items {digest(value)}"
    return f"state {digest(value)}"


def digest(value: Any) -> str:
    """Return a digest of a value and of all that it holds."""
    hashed = hashlib.sha256()
    for part in _flat(value):
        hashed.update(part)
    return hashed.hexdigest()[:8]


def dump(value: Any) -> bytes:
    """Return a value as bytes; raises if there is no way."""
    into = BytesIO()
    _Pickler(into).dump(value)
    return into.getvalue()


class _Pickler(pickle.Pickler):
    """Writes tensors as their bits: torch's own way calls `torch.save`, which is observed."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return NotImplemented
        raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return _load_tensor, (raw, value.dtype, tuple(value.shape), str(value.device))


def _load_tensor(raw: bytes, dtype: torch.dtype, shape: tuple[int, ...], device: str) -> Tensor:
    flat = torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    return flat.reshape(shape).to(device)


def _flat(value: Any) -> Iterator[bytes]:
    if isinstance(value, Tensor):
        yield fold([("", value)]).encode()
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype}{value.shape}".encode() + value.tobytes()
    elif isinstance(value, dict):
        yield f"dict {len(value)}".encode()
        for key, item in list(value.items()):
            yield repr(key).encode()
            yield from _flat(item)
    elif isinstance(value, _LISTS):
        yield f"{type(value).__name__} {len(value)}".encode()
        for item in list(value):
            yield from _flat(item)
    elif isinstance(value, _SETS):
        yield repr(sorted(digest(item) for item in value)).encode()
    elif isinstance(value, _ITERATORS):
        yield from _flat(value.__reduce__()[1:])
    else:
        yield f"{type(value).__name__} {value!r}".encode()


def _is_whole(value: Any, owned: set[int]) -> bool:
    """Whether a value can be kept and put back as one: it holds plain values, tensors and arrays only."""
    waiting, num = [value], 0
    while waiting:
        item, num = waiting.pop(), num + 1
        inner = _inside(item, owned)
        if num > _MAX_PARTS or inner is None:
            return False
        waiting += inner
    return True


def _inside(item: Any, owned: set[int]) -> list[Any] | None:
    """Return what a value holds; None if it is none that can be kept."""
    if type(item) in _PLAIN or isinstance(item, np.generic):
        return []
    if isinstance(item, Tensor):
        is_plain = item.layout is torch.strided and not nn.parameter.is_lazy(item)
        return [] if is_plain and id(item) not in owned else None
    if isinstance(item, np.ndarray):
        return None if item.dtype.hasobject else []
    if isinstance(item, dict):
        return [*item.keys(), *item.values()]
    if isinstance(item, _ITERATORS):
        return [*item.__reduce__()[1:]]
    return list(item) if isinstance(item, (*_LISTS, *_SETS)) else None


def _in_place(value: Any, put: Put | None) -> Put:
    """Return what changes a value where it is, so that all names of it see that."""

    def replace(other: Any) -> None:
        if isinstance(value, Tensor) and isinstance(other, Tensor) and value.shape == other.shape:
            _copy_all({"": value}, {"": other})
        elif isinstance(value, np.ndarray) and value.ndim and value.shape == np.shape(other):
            value[...] = other
        elif isinstance(value, list) and isinstance(other, list):
            value[:] = other
        elif isinstance(value, dict | set) and isinstance(other, dict | set):
            value.clear()
            value.update(other)
        elif isinstance(value, deque) and isinstance(other, deque):
            value.clear()
            value.extend(other)
        elif put is not None:
            put(other)

    return replace


def _copy_all(held: dict[str, Tensor], given: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, item in held.items():
            if name in given and item.shape == given[name].shape:
                item.copy_(given[name])


def _give(holder: Holder, name: Any, value: Any) -> None:
    """Give a variable of a module, an object or a function another value."""
    if not isinstance(holder, FrameType):
        holder[name] = value
        return
    holder.f_locals[name] = value
    if sys.version_info < (3, 13):  # these are a copy there
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(holder), ctypes.c_int(0))


def _give_item(holder: Any, place: int, value: Any) -> None:
    if isinstance(holder, list | deque) and place < len(holder):
        holder[place] = value


def _slots(value: Any) -> Iterator[tuple[str, Any, Any]]:
    for base in type(value).__mro__:
        for name, slot in list(vars(base).items()):
            if type(slot) is MemberDescriptorType and base.__module__ != "builtins":
                try:
                    yield name, slot, slot.__get__(value, base)
                except AttributeError:  # nothing was put there
                    continue


def _set_bits(value: Any, state: Any) -> None:
    value.bit_generator.state = state


_GENERATORS: tuple[tuple[Any, str, Callable[[Any], Any], Callable[[Any, Any], None]], ...] = (
    (random.Random, "Random", lambda value: value.getstate(), lambda value, state: value.setstate(state)),
    (np.random.Generator, "numpy Generator", lambda value: value.bit_generator.state, _set_bits),
    (
        np.random.RandomState,
        "RandomState",
        lambda value: value.get_state(legacy=False),
        lambda value, state: value.set_state(state),
    ),
    (
        torch.Generator,
        "torch Generator",
        lambda value: value.get_state(),
        lambda value, state: value.set_state(state),
    ),
)
"""Kinds of generators, what they are called, how their state is read, and how it is set."""


def _global_generators() -> Iterator[tuple[str, Thing]]:
    # By the objects themselves: the functions that stand for them are observed.
    own: list[tuple[str, Any]] = [("torch", torch.default_generator)]
    own += [("random", random._inst), ("numpy", np.random.mtrand._rand)]
    own += [(str(item.device), item) for item in getattr(module_in_use(), "default_generators", ())]
    for name, value in own:
        word, read, write = next(row[1:] for row in _GENERATORS if isinstance(value, row[0]))
        yield f"{GENERATOR}{name}", Thing(word, read(value), partial(write, value))
