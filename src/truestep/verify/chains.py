"""Comparing two runs by the digests of their steps.

Owns where two chains diverge, and at which step of the first run a resumed one goes on.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from truestep.verify.runs import Ran
from truestep.watch import Moment, Process, Update
from truestep.watch.evidence.facts.structure import FileSaved

_ORDER = (
    "batch",
    "inputs",
    "loss",
    "gradients",
    "settings",
    "weights",
    "state",
    "buffers",
    "kept",
    "generators",
)
"""In which order the parts of a step come about: the first that differs is told."""


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """Where two runs diverge: the update, and the parts of it that differ, in the order of a step."""

    place: int
    """The number of the update in the first run, from 0, over all optimizers."""
    step: int
    """How many steps had been made before."""
    parts: tuple[str, ...]
    first: Update | None
    """None when this run had ended before; so for the second one."""
    second: Update | None
    names: tuple[str, ...] = ()
    """Of what is kept or saved: which differ."""
    saved: Moment[Any] | None = None
    """Where a run saved what differs."""

    @property
    def what(self) -> str:
        """The first part that differs."""
        if self.is_before:
            return "initial weights"
        if self.saved is not None:
            names = _listed(self.names) or "in one run only"
            return f"saved file {self.saved.facts.path or ''}: {names}"
        if self.is_kept:
            return f"other state: {_listed(self.names)}"
        if self.first is None or self.second is None:
            return "number of steps"
        return self.parts[0]

    @property
    def is_before(self) -> bool:
        """Whether the weights differ before any step is made."""
        both = (self.first, self.second)
        weights = [update.before for update in both if update is not None and update.before is not None]
        return self.place == 0 and len(weights) == len(both) and weights[0] != weights[1]

    @property
    def shown_step(self) -> int:
        """The step that people are told, from 1; 0 is before the first one."""
        return 0 if self.is_before else self.step + 1

    @property
    def is_kept(self) -> bool:
        """Whether all that optimizers own is the same, and what the script keeps besides is not."""
        return self.parts[:1] == ("kept",)


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """Where a resumed run goes on: after so many updates of the first run. None: nowhere in it."""

    after: int | None
    kill_at: int


def diverge(
    first: Sequence[Update], second: Sequence[Update], *, outcome: Sequence[str], is_resumed: bool = False
) -> Divergence | None:
    """Return where two chains diverge, or None if they are the same to their ends."""
    for place in range(max(len(first), len(second))):
        ours = first[place] if place < len(first) else None
        theirs = second[place] if place < len(second) else None
        if ours is None or theirs is None:
            known = ours or first[-1] if first else theirs
            assert known is not None
            step = known.step + (ours is None)  # a resumed run counts its steps from its own beginning
            return Divergence(place=place, step=step, parts=(), first=ours, second=theirs)
        if any(_differs(ours, theirs, name, is_resumed=is_resumed) for name in outcome):
            parts = _differing(ours, theirs, is_resumed=is_resumed)
            names = _unlike(ours.parts.get("kept"), theirs.parts.get("kept"), is_resumed=is_resumed)
            return Divergence(
                place=place, step=ours.step, parts=parts, first=ours, second=theirs, names=names
            )
    return None


def compare(first: Ran, second: Ran, *, outcome: Sequence[str]) -> Divergence | None:
    """Return where two runs diverge: in a step, in what they save, or in what they keep to the end."""
    divergence = diverge(first.updates, second.updates, outcome=outcome)
    return divergence or compare_ends(first, second, outcome=outcome)


def compare_ends(first: Ran, second: Ran, *, outcome: Sequence[str]) -> Divergence | None:
    """Return where two runs diverge whose steps are the same. Of a resumed one only the last files count."""
    ours, theirs = first.first, second.first
    is_resumed = bool(second.before_kill)
    if "kept" not in outcome or ours is None or theirs is None:
        return None
    last, place = ours.updates[-1] if ours.updates else None, len(ours.updates)
    at_end = Divergence(place=place, step=ours.num_steps, parts=("kept",), first=last, second=last)
    if is_resumed and (ours.ended != "finished" or theirs.ended != "finished"):
        return None  # they were ended at other steps
    if ours.ended != theirs.ended:  # one would have made more steps
        return replace(at_end, parts=(), second=None)
    saves = [_saves(process, is_resumed) for process in (ours, theirs)]
    for site in dict.fromkeys([*saves[0], *saves[1]]):
        for one, other in zip_longest(*(files.get(site, ()) for files in saves)):
            known = one or other
            is_in_both = one is not None and other is not None
            names: tuple[str, ...] = ()
            if is_in_both:
                names = _unlike(one.facts.digests, other.facts.digests, is_resumed=is_resumed)
            if names or not (is_in_both or is_resumed):
                return replace(at_end, step=known.step, names=names, saved=known)
    # What dies in a circle of references lives until Python looks for those: there is no telling when.
    unlike = _unlike(ours.kept, theirs.kept, is_resumed=True)
    return replace(at_end, names=unlike) if unlike else None


_Saves = dict[tuple[str | None, int | None], list[Moment[FileSaved]]]


def _saves(process: Process, is_resumed: bool) -> _Saves:
    """Return what was saved, by the line that saved it: names of files may have the time in them."""
    found: _Saves = {}
    for moment in process.of(FileSaved):
        found.setdefault((moment.file, moment.line), []).append(moment)
    return {site: files[-1:] if is_resumed else files for site, files in found.items()}


def _unlike(
    ours: dict[str, str] | None, theirs: dict[str, str] | None, *, is_resumed: bool
) -> tuple[str, ...]:
    """Return the names under which two runs have something else.

    A resumed one has what it loaded, too, and lacks what led there: then names that both have count.
    """
    ours, theirs = ours or {}, theirs or {}
    names = [name for name in ours if name in theirs] if is_resumed else [*dict.fromkeys([*ours, *theirs])]
    return tuple(name for name in names if ours.get(name) != theirs.get(name))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(names[:2]) + more


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
    """Return one digest over all that is compared, but for what has other names in a resumed run.

    Of buffers those of the first model: a resumed run may not have called the others before its first step.
    """
    values = [
        [_value(update, name) for name in outcome if name not in ("kept", "buffers")] for update in updates
    ]
    first = [next(iter(sorted((_value(update, "buffers") or {}).items())), None) for update in updates]
    values = (
        [[*row, item] for row, item in zip(values, first, strict=True)] if "buffers" in outcome else values
    )
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]


def _differing(ours: Update, theirs: Update, *, is_resumed: bool) -> tuple[str, ...]:
    """Return the parts that differ. A loader that reads ahead hands out other batches than the step uses."""
    parts = tuple(name for name in _ORDER if _differs(ours, theirs, name, is_resumed=is_resumed))
    has_same_inputs = bool(_value(ours, "inputs")) and "inputs" not in parts
    return tuple(name for name in parts if name != "batch") if has_same_inputs else parts


def _differs(  # limits: a part of two updates
    ours: Update, theirs: Update, name: str, *, is_resumed: bool
) -> bool:
    if name == "kept" or (name == "buffers" and is_resumed):
        return bool(_unlike(ours.parts.get(name), theirs.parts.get(name), is_resumed=is_resumed))
    one, other = _value(ours, name), _value(theirs, name)
    if name == "loss" and is_resumed and one and other:
        one = one[-len(other) :]  # gradients that were saved have the passes before the kill in them
    return bool(one != other)


def _value(update: Update, name: str) -> Any:
    return update.parts.get(name)
