"""Comparing two runs by the digests of their steps.

Owns where two chains part, and at which step of the first run a resumed one goes on. Why is left to others.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from truestep.verify.runs import Ran
from truestep.watch import Update

_ORDER = ("batch", "inputs", "loss", "gradients", "settings", "weights", "state", "buffers", "generators")
"""In which order the parts of a step come about: the first that differs is told."""


@dataclass(frozen=True, kw_only=True)
class Parting:
    """Where two runs part: the update, and the parts of it that differ, in the order in which they arise."""

    place: int
    """The number of the update in the first run, from 0, over all optimizers."""
    step: int
    """How many steps had been made before."""
    parts: tuple[str, ...]
    first: Update | None
    """None when this run had ended before; so for the second one."""
    second: Update | None

    @property
    def what(self) -> str:
        """The first part that differs."""
        if self.first is None or self.second is None:
            return "number of steps"
        return self.parts[0]


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """Where a resumed run goes on: after so many updates of the first run. None: nowhere in it."""

    after: int | None
    kill_at: int


def part(first: Sequence[Update], second: Sequence[Update], *, outcome: Sequence[str]) -> Parting | None:
    """Return where two chains part, or None if they are the same to their ends."""
    for place in range(max(len(first), len(second))):
        ours = first[place] if place < len(first) else None
        theirs = second[place] if place < len(second) else None
        if ours is None or theirs is None:
            known = ours or theirs
            assert known is not None
            return Parting(place=place, step=known.step, parts=(), first=ours, second=theirs)
        if any(_value(ours, name) != _value(theirs, name) for name in outcome):
            parts = _differing(ours, theirs)
            return Parting(place=place, step=ours.step, parts=parts, first=ours, second=theirs)
    return None


def resumed_at(first: Ran, second: Ran, *, kill_at: int) -> Resumed:
    """Return where the second run went on: where the first one had the weights that it began with."""
    if not second.updates:
        return Resumed(after=None, kill_at=kill_at)
    begun = second.updates[0]
    same = [update for update in first.updates if update.optimizer == begun.optimizer]
    places = {id(update): place for place, update in enumerate(first.updates)}
    for update in reversed(same[:kill_at]):
        if update.parts.get("weights") == begun.before:
            return Resumed(after=places[id(update)] + 1, kill_at=kill_at)
    if same and same[0].before == begun.before:
        return Resumed(after=0, kill_at=kill_at)
    return Resumed(after=None, kill_at=kill_at)


def digest(updates: Sequence[Update], outcome: Sequence[str]) -> str:
    """Return one digest over all that is compared."""
    values = [[_value(update, name) for name in outcome] for update in updates]
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]


def _differing(ours: Update, theirs: Update) -> tuple[str, ...]:
    """Return the parts that differ. A loader that reads ahead hands out other batches than the step uses."""
    parts = tuple(name for name in _ORDER if _value(ours, name) != _value(theirs, name))
    has_same_inputs = bool(_value(ours, "inputs")) and "inputs" not in parts
    return tuple(name for name in parts if name != "batch") if has_same_inputs else parts


def _value(update: Update, name: str) -> Any:
    return update.parts.get(name)
