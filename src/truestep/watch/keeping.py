"""What a script keeps from one step to the next besides what an optimizer owns: averages, teachers, queues.

Owns finding it: from the variables of the user's own modules and functions, through containers, modules and
plain objects, by names as the user would write them. Runs no code of the user's.
"""

import dis
import itertools
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from truestep.watch.sites import Sites

Kept = Tensor | npt.NDArray[Any]

_MAX_DEPTH, _MAX_ITEMS = 4, 1024
_HELD_BY_MODULES = ("_parameters", "_buffers", "_modules")
_FOREIGN = frozenset({"torch", "truestep", "builtins", "numpy"})
"""Packages whose objects are not looked into. Modules and tensors of theirs are."""
_CODE = (type, FunctionType, MethodType, ModuleType)
_GENERATOR_BYTES = frozenset({16, 5056})
"""Sizes of the states of torch's generators, on devices and on the CPU."""


def find_kept(sites: Sites, *, skip: set[int]) -> dict[str, Kept]:
    """Return tensors of several elements that outlive the step which is being made, without those to skip.

    A variable outlives it if the loop around the step reads it before it gives it a value, or does neither.
    """
    walk = _Walk(skip)
    frames = [*_own_frames(sites)]
    names = {id(frame.f_globals): _carried(frame) for frame in frames if frame.f_code.co_name == "<module>"}
    for module in _own_modules(sites):
        prefix = "" if module.__name__ == "__main__" else f"{module.__name__}."
        wanted = names.get(id(vars(module)))
        walk.add(prefix, _chosen(dict(vars(module)), wanted))
    for frame in reversed(frames):
        if frame.f_code.co_name != "<module>":
            walk.add("", _chosen(_locals_of(frame), _carried(frame)))
    with torch._C.DisableTorchFunctionSubclass():
        return {name: item for name, item in walk.found.items() if _size(item) > 1}


def find_stored(value: Any) -> dict[str, Kept]:
    """Return all tensors and arrays in something that is saved, without states of generators."""
    walk = _Walk(set())
    walk.add("", value if type(value) is dict else {"": value})
    with torch._C.DisableTorchFunctionSubclass():
        return {name.strip("."): item for name, item in walk.found.items() if not _is_generator(item)}


def _is_generator(item: Kept) -> bool:
    return item.ndim == 1 and item.dtype in (torch.uint8, np.uint8) and len(item) in _GENERATOR_BYTES


def _size(item: Kept) -> int:
    return item.numel() if isinstance(item, Tensor) else 0  # arrays of the user's may hold measured times


class _Walk:
    """Goes through what variables hold; each tensor is found once, under its first name."""

    def __init__(self, skip: set[int]) -> None:
        self._seen = set(skip)
        self.found: dict[str, Kept] = {}

    def add(self, prefix: str, variables: dict[Any, Any]) -> None:
        waiting = [(f"{prefix}{name}", value, 0) for name, value in reversed(variables.items())]
        while waiting:
            name, value, depth = waiting.pop()
            kind = type(value)  # what an object says of its class may be code of the user's
            if kind in (int, float, str, bool, bytes, type(None)) or id(value) in self._seen:
                continue
            self._seen.add(id(value))
            if issubclass(kind, Tensor | np.ndarray):
                if not nn.parameter.is_lazy(value) and not (kind is np.ndarray and value.dtype.hasobject):
                    self.found[name] = value
            elif depth <= _MAX_DEPTH:
                inner = [*_inside(value, kind)]
                waiting += [(f"{name}{key}", item, depth + step) for key, item, step in reversed(inner)]


def _inside(value: Any, kind: type) -> Iterator[tuple[str, Any, int]]:
    """Yield what lies in something, with what is added to its name and to the depth."""
    if issubclass(kind, nn.Module):
        for name, item in list(vars(value).items()):
            inner = item.items() if name in _HELD_BY_MODULES else ()
            yield from ((f".{key}", part, 0) for key, part in list(inner))
            yield f".{name}", None if name in _HELD_BY_MODULES else item, 1
    elif issubclass(kind, dict):
        for key, item in itertools.islice(list(dict.items(value)), _MAX_ITEMS):
            yield f".{key}", item, 1
    elif issubclass(kind, list | tuple | deque):
        for index, item in enumerate(itertools.islice(list(value), _MAX_ITEMS)):
            yield f".{index}", item, 1
    elif not issubclass(kind, _CODE) and kind.__module__.partition(".")[0] not in _FOREIGN:
        for name, item in list(_attributes(value).items()):
            yield f".{name}", item, 1


def _attributes(value: Any) -> dict[str, Any]:
    """Return what an object holds, past its own ways of handing it out."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def _own_frames(sites: Sites) -> Iterator[FrameType]:
    """Yield the frames of the user's own code, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if sites.is_own(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def _own_modules(sites: Sites) -> list[ModuleType]:
    found = [sys.modules["__main__"]]
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__dict__", {}).get("__file__")
        if name != "__main__" and isinstance(file, str) and sites.is_own(file):
            found.append(module)
    return found


def _locals_of(frame: FrameType) -> dict[str, Any]:
    held = frame.f_locals
    values = dict(held)
    # Before Python 3.13 the frame keeps this copy, and with it tensors that the function lets go of. It is
    # emptied if only the frame has it: a function that calls `locals()` shares it.
    if type(held) is dict and sys.getrefcount(held) <= 3:  # the frame, this name, the question
        held.clear()
    return values


def _chosen(variables: dict[str, Any], names: tuple[frozenset[str], bool] | None) -> dict[str, Any]:
    """Leave out what is made anew in each round of the loop; without a loop a function keeps its object."""
    variables = {name: value for name, value in variables.items() if not name.startswith("__")}
    if names is None:
        return variables
    fresh, is_looping = names
    if not is_looping:
        return {name: value for name, value in variables.items() if name == "self"}
    return {name: value for name, value in variables.items() if name not in fresh}


def _carried(frame: FrameType) -> tuple[frozenset[str], bool]:
    """Return the names that the loop at work makes anew, and whether there is such a loop."""
    fresh, is_looping = _made_in_loop(frame.f_code, frame.f_lasti)
    return fresh, is_looping or frame.f_code.co_name == "<module>"


@lru_cache(maxsize=256)
def _made_in_loop(code: CodeType, place: int) -> tuple[frozenset[str], bool]:
    instructions = list(dis.get_instructions(code))
    loops = [
        (item.argval, item.offset)
        for item in instructions
        if "JUMP_BACKWARD" in item.opname and item.argval <= place <= item.offset
    ]
    if not loops:
        return frozenset(), False
    first, last = max(loops)  # the innermost: what an outer one makes anew outlives this step
    used: dict[str, bool] = {}
    for item in instructions:
        if first <= item.offset <= last:
            for name, is_stored in _accesses(item):
                used.setdefault(name, is_stored)
    return frozenset(name for name, is_stored in used.items() if is_stored), True


def _accesses(item: dis.Instruction) -> Iterable[tuple[str, bool]]:
    """Return the variables that an instruction touches, and whether it gives them a value."""
    kinds = ("FAST", "NAME", "GLOBAL", "DEREF")
    if not item.opname.startswith(("LOAD_", "STORE_")) or not any(kind in item.opname for kind in kinds):
        return ()
    names = item.argval if isinstance(item.argval, tuple) else (item.argval,)
    words = [word for word in item.opname.split("_") if word in ("LOAD", "STORE")]  # of two in one: in order
    return [(name, word == "STORE") for name, word in zip(names, words, strict=False)]
