"""Comparing with another version: of torch, of the script, or of a run that was saved.

Owns which operation differs first, and whether a difference is rounding or a change of meaning. Lines and
names may differ between two versions; operations, their arguments and results are compared.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from truestep.verify.causes import FoundCause
from truestep.verify.chains import Divergence
from truestep.verify.fingerprint import Called
from truestep.watch import Update
from truestep.watch.evidence.sketch import distance

OUTCOME = ("loss", "gradients", "weights", "state", "buffers", "settings")
"""What two versions must have in common to be the same. Names of variables may differ."""

_TOLERANCES = {"float64": 1e-12, "float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}
"""How far apart rounding leaves results of one step, as a part of their norm: about a hundred roundings for
the long formats, and a few for the short ones, whose sums are longer than they are exact."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """The first operation that differs: another one, one with other arguments, inputs, or another result."""

    how: Literal["flow", "argument", "input", "result"]
    ours: Called
    theirs: Called


def split(ours: Sequence[Called], theirs: Sequence[Called]) -> Split | None:
    """Return where two lists of operations diverge."""
    for one, other in zip(ours, theirs, strict=False):
        if one.name != other.name:
            return Split(how="flow", ours=one, theirs=other)
        if one.outs == other.outs:
            continue
        if one.scalars != other.scalars:
            return Split(how="argument", ours=one, theirs=other)
        return Split(how="input" if one.ins != other.ins else "result", ours=one, theirs=other)
    return None


def judge(
    ours: Sequence[Update],
    theirs: Sequence[Update],
    *,
    divergence: Divergence,
    found: Split | None,
    is_same_torch: bool,
) -> tuple[bool, FoundCause]:
    """Return whether two versions differ by rounding alone, and the sentence about it."""
    evidence: list[str] = []
    tolerance, dtype = _tolerance(found)
    apart = _apart(ours, theirs, divergence.place)
    is_rounding = apart is not None and apart[1] <= tolerance
    if divergence.first is None or divergence.second is None:
        is_rounding = False
        evidence.append("one of the two makes more steps")
    elif "settings" in divergence.parts:
        is_rounding = False
        evidence.append("the optimizer's settings differ, such as the learning rate")
    elif apart is None:
        evidence.append("no numbers show whether it is rounding")
    else:
        words = f"step {divergence.step + 1}: {apart[0]} {apart[1]:.1g} apart, relative to their size"
        evidence.append(f"{words}; rounding in {dtype} stays below {tolerance:g}")
        last = min(len(ours), len(theirs)) - 1
        later = _apart(ours, theirs, last)
        if later is not None and last > divergence.place:
            evidence.append(f"step {ours[last].step + 1}: {later[1]:.1g}")
    if found is not None and found.how == "argument" and is_same_torch:
        is_rounding = False
        evidence.append(f"its arguments: {_changed(found.theirs.scalars, found.ours.scalars)}")
    elif found is not None and found.how == "flow":
        evidence.append(f"{found.ours.name} in place of {found.theirs.name}")
    name = "rounding-only" if is_rounding else "training-changed"
    update = divergence.first or divergence.second
    finding = FoundCause(name=name, evidence=evidence, is_proved=not is_rounding or bool(found))
    if found is None:
        finding.file, finding.line = (update.file, update.line) if update else (None, None)
        return is_rounding, finding
    one = found.ours
    finding.file, finding.line = one.file, one.line
    finding.operation, finding.module = one.name, one.module or None
    finding.distance = _distance_of(found)
    return is_rounding, finding


def _tolerance(found: Split | None) -> tuple[float, str]:
    """Return how far rounding goes in the shortest format of the operation that differs."""
    names = [call.dtype for call in (found.ours, found.theirs)] if found is not None else []
    known = [name for name in names if name in _TOLERANCES] or ["float32"]
    name = max(known, key=lambda item: _TOLERANCES[item])
    return _TOLERANCES[name], name


def _apart(ours: Sequence[Update], theirs: Sequence[Update], place: int) -> tuple[str, float] | None:
    """Return what is farthest apart in an update, and how far."""
    if place >= min(len(ours), len(theirs)):
        return None
    found = {}
    one, other = ours[place].parts, theirs[place].parts
    for name in ("gradients", "weights"):
        sketches = [parts.get("sketch", {}).get(name) for parts in (one, other)]
        if sketches[0] and sketches[1]:
            apart = distance(sketches[0], sketches[1])
            if apart is not None:
                found[name] = apart
    losses = [_losses(parts.get("loss")) for parts in (one, other)]
    if losses[0] and losses[1] and len(losses[0]) == len(losses[1]):
        pairs = zip(*losses, strict=True)
        found["losses"] = max(abs(a - b) / max(abs(a), abs(b), 1e-30) if a != b else 0.0 for a, b in pairs)
    finite = {name: math.inf if math.isnan(value) else value for name, value in found.items()}
    name = max(finite, key=lambda item: finite[item], default="")
    return (name, finite[name]) if name else None


def _losses(written: list[list[str | None]] | None) -> list[float]:
    return [float.fromhex(value) for value, _ in written or () if value is not None]


def _changed(before: str, now: str) -> str:
    return f"({before}) before, ({now}) now" if len(before) + len(now) < 160 else "changed"


def _distance_of(found: Split) -> str | None:
    one, other = found.ours, found.theirs
    if found.how == "flow" or None in (one.norm, other.norm, one.total, other.total):
        return None
    assert (
        one.norm is not None and other.norm is not None and one.total is not None and other.total is not None
    )
    scale = max(one.norm, other.norm)
    return f"results about {abs(one.total - other.total) / scale:.1g} apart" if scale else None
