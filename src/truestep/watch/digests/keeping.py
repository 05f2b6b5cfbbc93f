"""What a script keeps from one step to the next besides what an optimizer owns: averages, teachers, queues.

Owns which variables outlive a step, and what is found in files. What variables hold is left to `reach`.
"""

import dis
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from types import CodeType, FrameType, ModuleType
from typing import Any

import torch

from truestep.watch.digests.reach import Found, Kept, Walk
from truestep.watch.script.sites import Sites

_GENERATOR_BYTES, _DEVICE_GENERATOR_BYTES = 5056, 16
"""Sizes of the states of torch's generators, on the CPU and on devices."""
_JUMPS = frozenset({*dis.hasjrel, *dis.hasjabs})

Holder = dict[str, Any] | FrameType
"""Where variables are: the dictionary of a module or object, or the frame of a function that runs."""


def find_kept(sites: Sites, *, others: Mapping[str, Any], turn: int | None = None) -> Found:
    """Return the tensors that outlive the current step, by name.

    A variable outlives it if the loop around the step reads it before it gives it a value, or does neither.
    `others` are gone through after all variables. Without a `turn` long containers are read whole.
    """
    walk = Walk(sites, turn=turn)
    for prefix, variables, _ in own_holders(sites):
        walk.add(prefix, variables)
    walk.add("", others)
    return walk.without_copies()


def own_holders(sites: Sites) -> Iterator[tuple[str, dict[str, Any], Holder]]:
    """Yield variables that outlive the current step: the prefix of their names, the values, the holder."""
    frames = _own_frames(sites)
    names = {id(frame.f_globals): fresh for frame, fresh in frames if frame.f_code.co_name == "<module>"}
    for module in _own_modules(sites):
        prefix = "" if module.__name__ == "__main__" else f"{module.__name__}."
        chosen = _chosen(dict(vars(module)), names.get(id(vars(module)), frozenset()))
        yield prefix, chosen, vars(module)
    for frame, fresh in frames:
        if frame.f_code.co_name != "<module>":
            yield "", _chosen(locals_of(frame), fresh), frame


def find_stored(value: Any) -> Found:
    """Return all tensors and arrays in something that is saved, without states of generators."""
    walk = Walk()
    walk.add("", value if type(value) is dict else {"": value})
    with torch._C.DisableTorchFunctionSubclass():
        found = {
            name: [item for item in items if not _is_generator(item)] for name, items in walk.found.items()
        }
    return {name.strip(".") or "contents": items for name, items in found.items() if items}


def _is_generator(item: Kept) -> bool:
    if item.ndim != 1 or item.dtype is not torch.uint8:
        return False
    if len(item) == _DEVICE_GENERATOR_BYTES:
        return torch.accelerator.is_available()
    try:
        torch.Generator().set_state(item)
    except RuntimeError:  # bytes of something else
        return False
    return len(item) == _GENERATOR_BYTES


def script_frames(sites: Sites) -> list[FrameType]:
    """Return the frames from the script's first one to what called us; not those that have started it."""
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)
    # A reference to our own frame would keep it alive, and with it everything in the script's frames.
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("truestep.watch."):
        frame = frame.f_back
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    main = vars(sys.modules["__main__"])
    starts = [frame for frame in frames if frame.f_globals is main]
    starts = starts or [frame for frame in frames if sites.is_own(frame.f_code.co_filename)]  # in a thread
    return frames[: frames.index(starts[-1]) + 1][::-1] if starts else []


def _own_frames(sites: Sites) -> list[tuple[FrameType, frozenset[str] | None]]:
    """Return frames of the user's code, the outermost first, with what each assigns again in every iteration.

    None stands for all names: a loop calls the function, which has no loop itself.
    """
    found: list[tuple[FrameType, frozenset[str] | None]] = []
    is_inside = False
    for frame in script_frames(sites):
        fresh, has_loop = _made_in_loop(frame.f_code, frame.f_lasti)
        if sites.is_own(frame.f_code.co_filename):
            is_once = has_loop or not is_inside or frame.f_code.co_name == "<module>"
            found.append((frame, fresh if is_once else None))
        is_inside = is_inside or has_loop
    return found


def _own_modules(sites: Sites) -> list[ModuleType]:
    found = [sys.modules["__main__"]]
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__dict__", {}).get("__file__")
        if name != "__main__" and isinstance(file, str) and sites.is_own(file):
            found.append(module)
    return found


def is_looping(frame: FrameType) -> bool:
    """Whether a frame stands inside of a loop."""
    return _made_in_loop(frame.f_code, frame.f_lasti)[1]


def loop_line(frame: FrameType) -> int | None:
    """Return the line at which each round of the innermost loop begins that a frame stands in."""
    first = max(_loops(frame.f_code, frame.f_lasti), default=(None, 0))[0]
    lines = {item.offset: item for item in dis.get_instructions(frame.f_code)}
    place = lines[first].positions if first is not None else None
    return place.lineno if place is not None else None


def locals_of(frame: FrameType) -> dict[str, Any]:
    """Return a function's variables without leaving them in its frame."""
    local_values = frame.f_locals
    values = dict(local_values)
    # Before Python 3.13 the frame keeps this copy, and with it tensors that the function lets go of. It is
    # emptied if only the frame has it: a function that calls `locals()` shares it.
    if (
        type(local_values) is dict and sys.getrefcount(local_values) <= 3
    ):  # the frame, this name, the question
        local_values.clear()
    return values


def _chosen(variables: dict[str, Any], fresh: frozenset[str] | None) -> dict[str, Any]:
    """Leave out what every iteration assigns again; keep the object of a method that is called again."""
    if fresh is None:
        return {name: value for name, value in variables.items() if name == "self"}
    return {name: item for name, item in variables.items() if not name.startswith("__") and name not in fresh}


def _loops(code: CodeType, place: int) -> list[tuple[int, int]]:
    """Return where the loops around a place begin and end."""
    return [
        (item.argval, item.offset)
        for item in dis.get_instructions(code)
        if "JUMP_BACKWARD" in item.opname and item.argval <= place <= item.offset
    ]


@lru_cache(maxsize=1024)
def _made_in_loop(code: CodeType, place: int) -> tuple[frozenset[str], bool]:
    """Return the names that the loop assigns again in every iteration, and whether there is a loop."""
    instructions = list(dis.get_instructions(code))
    loops = _loops(code, place)
    if not loops:
        return frozenset(), False
    first, last = max(loops)  # the innermost: what an outer loop assigns again outlives this step
    used: dict[str, bool] = {}
    sure_from = first
    """Instructions from here on are not skipped: what only some iterations assign outlives a step."""
    for item in instructions:
        if first <= item.offset <= last:
            for name, is_stored in _accesses(item):
                used.setdefault(name, is_stored and item.offset >= sure_from)
            if item.opcode in _JUMPS and max(sure_from, item.offset) < item.argval <= last:
                sure_from = item.argval
    return frozenset(name for name, is_stored in used.items() if is_stored), True


def _accesses(item: dis.Instruction) -> Iterable[tuple[str, bool]]:
    """Return the variables that an instruction touches, and whether it gives them a value."""
    kinds = ("FAST", "NAME", "GLOBAL", "DEREF")
    if not item.opname.startswith(("LOAD_", "STORE_")) or not any(kind in item.opname for kind in kinds):
        return ()
    names = item.argval if isinstance(item.argval, tuple) else (item.argval,)
    words = [word for word in item.opname.split("_") if word in ("LOAD", "STORE")]  # of two in one: in order
    return [(name, word == "STORE") for name, word in zip(names, words, strict=False)]
