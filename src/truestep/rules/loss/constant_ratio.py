"""The ratio of a clipped policy objective is always 1: new and old log-probabilities are the same.

## What it finds
`exp(new - old)` that is clamped and multiplied by an advantage, where `old` is a detached copy of `new` or is
computed by the same weights, while several steps train on the same data. With one step for each batch of data
the ratio is 1 by design, and nothing is reported.

## Why it matters
PPO makes several steps on the same samples, and the ratio shows how far the policy has moved away from the
one that drew them. If it is always 1, nothing is clipped and old samples are used as if they were new ones:
the policy makes large steps, and training becomes unstable.
"""

from collections.abc import Iterator
from itertools import combinations

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.flow import PICKING, OperationGraph, place_of
from truestep.rules.kit.formula import Found, find, given, is_same, op, trained
from truestep.rules.kit.grouping import by_line, steps_of
from truestep.watch import Operation
from truestep.watch.evidence.facts.passes import BackwardPass

RULE = Meta(
    code="LOSS15",
    severity="error",
    needs=(BackwardPass,),
    fix="Subtract the log-probabilities that were stored when the actions were drawn.",
)
_DIFFERENCE = (trained("new") - given("old")).named("difference")
_OBJECTIVE = op("clamp clip", op("exp", _DIFFERENCE)).named("clipped") * given("advantage")


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find ratios of a value to itself, on data that several steps share."""
    flow = evidence.flow
    # Where the advantages are not known, only a part of the step was recorded.
    known = [match for match in find(flow, _OBJECTIVE) if _advantages(flow, match) is not None]
    found = {match.parts["difference"]: match for match in known}
    for differences in by_line(found).values():
        matches = [found[item] for item in differences]
        shared = [pair for pair in combinations(matches, 2) if _is_shared(flow, *pair)]
        pairs = [(match.tensors["new"], match.tensors["old"]) for match in matches]
        if not shared or not all(is_same(flow, pair) for pair in pairs):
            continue
        one, other = (match.place.step + 1 for match in shared[0])
        yield Finding.at(
            differences[0],
            "the ratio of new and old probabilities is always 1: both are computed by the same weights",
            count=len(steps_of(differences)),
            evidence="exp of a difference between equal values; it is clamped "
            f"{place_of(matches[0].parts['clipped'], differences[0].file)}, and steps {one} and {other} "
            "multiply it by the same advantages",
        )


def _advantages(flow: OperationGraph, match: Found) -> Operation | None:
    """Return what made the advantages, before some of them were chosen."""
    return flow.source(match.tensors["advantage"], PICKING)


def _is_shared(flow: OperationGraph, one: Found, other: Found) -> bool:
    return one.place.step < other.place.step and _advantages(flow, one) == _advantages(flow, other)
