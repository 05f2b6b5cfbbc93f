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
from math import prod

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.flow import PICKING, OperationGraph, place_of
from truestep.watch import Operation
from truestep.watch.evidence.facts.passes import BackwardPass, ExponentsZero
from truestep.watch.evidence.operation import In

RULE = Meta(
    code="LOSS15",
    severity="error",
    needs=(BackwardPass,),
    fix="Subtract the log-probabilities that were stored when the actions were drawn.",
)
_LEAST_STEPS, _LEAST_EQUAL, _MAX_BACK = 2, 3, 4


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find ratios of a value to itself, on data that several steps share."""
    flow = evidence.flow
    found: dict[tuple[str | None, int | None], dict[int, tuple[Operation, Operation, set[int]]]] = {}
    cleared: set[tuple[str | None, int | None]] = set()
    zeros = {moment.facts.operation_index for moment in evidence.of(ExponentsZero)}
    for ratio in flow.named("exp"):
        difference = flow.maker(ratio.ins[0])
        clamp = next((user for user in flow.users(ratio) if user.kind in ("clamp", "clip")), None)
        if difference is None or clamp is None or not ratio.ins[0].has_grad:
            continue
        place = (difference.file, difference.line)
        if not _is_of_itself(difference) and ratio.index not in zeros:
            cleared.add(place)
            continue
        weights = {index for user in (ratio, clamp) for index in _weights(flow, user)}
        found.setdefault(place, {}).setdefault(ratio.step, (difference, clamp, weights))
    for place, steps in found.items():
        shared = [
            (one, other)
            for one in steps
            for other in steps
            if one < other and steps[one][2] & {i for i in steps[other][2] if _is_made_before(flow, i, other)}
        ]
        difference, clamp, _ = steps[min(steps)]
        # A warm-up may begin with a rate of 0: then the second step finds the first one's weights.
        least = _LEAST_STEPS if _is_of_itself(difference) else _LEAST_EQUAL
        if place in cleared or not shared or len(steps) < least:
            continue
        yield Finding.at(
            difference,
            "the ratio of new and old probabilities is always 1: both are computed by the same weights",
            count=len(steps),
            evidence=f"exp of {_what(difference)}; it is clamped "
            f"{place_of(clamp, difference.file)}, and steps {shared[0][0] + 1} and {shared[0][1] + 1} "
            "multiply it by the same advantages",
        )


def _what(difference: Operation) -> str:
    if _is_of_itself(difference):
        return "a tensor minus its own detached values"
    return f"{prod(difference.outs[0].shape)} differences, all of them 0"


def _is_of_itself(difference: Operation) -> bool:
    """Whether a value is subtracted from itself; detaching makes a view."""
    if difference.kind != "sub" or len(difference.ins) != 2:
        return False
    new, old = difference.ins
    is_same = new.producer is not None and new.producer == old.producer and new.shape == old.shape
    return is_same and new.has_grad and not old.has_grad


def _weights(flow: OperationGraph, ratio: Operation) -> Iterator[int]:
    """Yield what made the tensors that a ratio is multiplied by."""
    for user in flow.users(ratio):
        if user.kind != "mul" or len(user.ins) != 2:
            continue
        for given in user.ins:
            if not given.has_grad and given.producer is not None:
                yield from _chosen_from(flow, given)


def _chosen_from(flow: OperationGraph, given: In) -> Iterator[int]:
    """Yield what made a tensor, and what it was chosen from."""
    item = flow.maker(given)
    for _ in range(_MAX_BACK):
        if item is None:
            return
        yield item.index
        item = flow.maker(item.ins[0]) if item.kind in PICKING and item.ins else None


def _is_made_before(flow: OperationGraph, index: int, step: int) -> bool:
    item = flow.at(index)
    return item is not None and item.step < step
