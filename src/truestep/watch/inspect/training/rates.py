"""Learning rates that the script keeps beside those that its optimizers use.

Owns where such a rate may be: a variable around the step, an attribute of the optimizer, its defaults,
another key of its groups. Whether that is wrong is left to the rules.
"""

import re
import sys
from collections.abc import Iterator
from inspect import CO_OPTIMIZED
from math import isclose
from typing import Any

from torch.optim import Optimizer

from truestep.watch.evidence.facts.optimizing import RateBeside
from truestep.watch.script.tape import Tape

_NAME = re.compile(
    r"(?:(?:new|cur|current|step|this)_)?(?:lr|learning_rate)(?:_t|_now|_step)?", re.IGNORECASE
)
_KEYS = ("lr", "learning_rate")
_EVERY, _MAX_NOTED = 16, 64


def watch(tape: Tape) -> None:
    """Compare at the first steps and at some later ones."""
    tape.attend(_Rates(tape), "step_begins")


class _Rates:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._first: dict[int, Any] = {}
        self._last: dict[tuple[int, str, str], float] = {}
        self._num_noted: dict[int, int] = {}

    def step_begins(self, optimizer: Optimizer, number: int) -> None:
        tape = self._tape
        first = self._first.setdefault(number, getattr(optimizer, "defaults", {}).get("lr"))
        if not tape.is_looked_at and tape.num_steps % _EVERY:
            return
        rates: list[Any] = [group.get("lr") for group in optimizer.param_groups]
        if not rates or not all(map(_is_rate, rates)) or self._num_noted.get(number, 0) >= _MAX_NOTED:
            return
        for where, name, value in (*_kept(optimizer, first), *_variables(tape)):
            is_used = any(isclose(value, rate, rel_tol=1e-6) for rate in rates)
            if not is_used and self._last.get((number, where, name)) != value:
                self._last[number, where, name] = value
                self._num_noted[number] = self._num_noted.get(number, 0) + 1
                tape.note(RateBeside(number, where, name, value, float(rates[0])))


def _is_rate(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kept(optimizer: Optimizer, first: Any) -> Iterator[tuple[str, str, float]]:
    """Yield rates that the optimizer has and does not use; a class of the user's may use what it likes."""
    if not type(optimizer).__module__.startswith("torch.optim"):
        return
    own = vars(optimizer)
    for key in _KEYS:
        if _is_rate(own.get(key)):
            yield "attribute", key, float(own[key])
    default: Any = optimizer.defaults.get("lr")
    if _is_rate(default) and default != first:
        yield "defaults", "lr", float(default)
    other: Any = optimizer.param_groups[0].get("learning_rate")
    if _is_rate(other):
        yield "group", "learning_rate", float(other)


def _variables(tape: Tape) -> Iterator[tuple[str, str, float]]:
    """Yield variables of the user's function under way that are named like a rate."""
    frame: Any = sys._getframe(1)
    while frame is not None and not tape.sites.is_own(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return
    code = frame.f_code
    names = code.co_varnames if code.co_flags & CO_OPTIMIZED else code.co_names
    found = list(filter(_NAME.fullmatch, names))
    if not found:
        return
    variables = frame.f_locals
    values = [(name, variables.get(name)) for name in found]
    if code.co_flags & CO_OPTIMIZED and type(variables) is dict:
        variables.clear()  # a copy that Python keeps with the frame: it would hold the step's tensors
    for name, value in values:
        if _is_rate(value):
            yield "variable", name, float(value)
