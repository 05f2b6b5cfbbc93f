"""Plain values that a script keeps from step to step: numbers, texts, lists, arrays, generators.

Owns what is written of them at the beginning of the steps that a plan names. They may hold the time, or what
is only printed, so that they explain a difference and never make one.
"""

import hashlib
import random
from collections import deque
from collections.abc import Callable
from itertools import islice
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from truestep.watch.digests.keeping import own_variables
from truestep.watch.hooks.seeds import states
from truestep.watch.script.tape import Tape

_MAX_VALUES = 5000
_MAX_ITEMS, _MAX_DEPTH, _MAX_CHARACTERS, _MAX_ELEMENTS = 64, 6, 40, 1 << 20
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_LISTS = (list, tuple, deque, set, frozenset)
_CLOSED = (type, ModuleType, FunctionType, MethodType, Optimizer)
_FOREIGN = frozenset({"torch", "truestep", "numpy", "threading", "multiprocessing", "queue", "asyncio"})
_GENERATORS: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (random.Random, lambda value: value.getstate()),
    (np.random.Generator, lambda value: value.bit_generator.state),
    (torch.Generator, lambda value: value.get_state().numpy().tobytes()),
)
GENERATOR = "generator "
"""What stands before the name of a global generator."""


def watch(tape: Tape) -> None:
    """Write values when the first module of a step is called, or its optimizer if none is."""
    taken: set[int] = set()

    def take(*_: Any) -> None:
        step = tape.num_steps
        if step in tape.plan.values and step not in taken:
            taken.add(step)
            tape.write("plain", step=step, values=_find(tape))

    tape.listen(forward_begins=take, step_begins=take)


def _find(tape: Tape) -> dict[str, str]:
    found = {f"{GENERATOR}{name}": _digest(state) for name, state in states().items()}
    seen: set[int] = set()
    waiting = deque((name, value, 0) for name, value in own_variables(tape.sites))
    while waiting and len(found) < _MAX_VALUES:
        name, value, depth = waiting.popleft()
        text = _text(value)
        if text is not None:
            found.setdefault(name, text)
        elif id(value) not in seen and depth < _MAX_DEPTH:
            seen.add(id(value))
            if isinstance(value, (dict, *_LISTS)):
                found.setdefault(f"{name} has", f"{len(value)} items")
            waiting += ((f"{name}.{key}", item, depth + 1) for key, item in _inside(value))
    return found


def _text(value: Any) -> str | None:
    """Return what tells a value from others; None if it holds more values."""
    if type(value) in _PLAIN:
        text = repr(value)
        return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]} {_digest(value)}"
    if isinstance(value, Tensor):
        is_plain = type(value) is Tensor and value.device.type == "cpu" and value.layout is torch.strided
        if not is_plain or value.numel() > _MAX_ELEMENTS:
            return "tensor"
        value = value.detach().float().numpy() if value.dtype is torch.bfloat16 else value.detach().numpy()
    if isinstance(value, np.ndarray | np.generic):
        return repr(value.item()) if value.size == 1 else f"array {value.shape} {_digest(value.tobytes())}"
    for kind, state in _GENERATORS:
        if isinstance(value, kind):
            return f"generator {_digest(state(value))}"
    return None


def _inside(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(str(key), item) for key, item in islice(list(value.items()), _MAX_ITEMS) if _is_key(key)]
    if isinstance(value, set | frozenset):
        return []  # in no order
    if isinstance(value, _LISTS):
        items = list(value)
        places = dict.fromkeys([*range(len(items))[:_MAX_ITEMS], *range(len(items))[-_MAX_ITEMS:]])
        return [(str(place), items[place]) for place in places]
    package = type(value).__module__.partition(".")[0]
    is_module = isinstance(value, nn.Module)
    if isinstance(value, _CLOSED) or (package in _FOREIGN and not is_module):
        return []
    own = getattr(value, "__dict__", None)
    held = dict(own) if type(own) is dict else {}
    if is_module:
        children = held.get("_modules") or {}
        held = {name: item for name, item in held.items() if not name.startswith("_")} | children
    return list(held.items())


def _is_key(key: Any) -> bool:
    return type(key) in (str, int)


def _digest(value: Any) -> str:
    raw = value if isinstance(value, bytes) else repr(value).encode()
    return hashlib.sha256(raw).hexdigest()[:8]
