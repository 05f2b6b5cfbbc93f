"""Where the time of a step goes: to data, forward, backward, the optimizer, or anything else.

Owns which moment belongs to which phase. Forward is the pass with the loss: all between the first trained
module that is called and the backward pass. What is in no phase is `other`: evaluation, logging.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from truestep.watch.evidence.facts.loading import BatchFetched, EpochBegan
from truestep.watch.evidence.facts.optimizing import (
    ClippingCalled,
    GradientsZeroed,
    OptimizerStep,
    SchedulerStep,
)
from truestep.watch.evidence.facts.passes import BackwardPass, ForwardPass, ModelUsed
from truestep.watch.evidence.moment import Moment

PHASES = ("data", "forward", "backward", "optimizer", "other")
_PHASE_OF = {
    BatchFetched: "data",
    EpochBegan: "data",  # workers are started there
    BackwardPass: "backward",
    OptimizerStep: "optimizer",
    GradientsZeroed: "optimizer",
    ClippingCalled: "optimizer",
    SchedulerStep: "optimizer",
}
_END_OF_PASS = (BackwardPass, OptimizerStep, BatchFetched, EpochBegan)


class _Piece(NamedTuple):
    begin_s: float
    end_s: float
    phase: str


def phase_shares(
    moments: Sequence[Moment[Any]], *, begin: int = 1, without: Collection[int] = ()
) -> dict[str, float]:
    """Return each phase's share of the time of steps, from the step with index `begin` on; empty if none.

    Steps `without` are left out: their time is not the script's own.
    A step lasts from the end of the update before it to the end of its own. Steps that were only counted are
    left out, and steps with an evaluation, unless most have one.
    """
    updates = (item for item in moments if isinstance(item.facts, OptimizerStep) and item.facts.counts)
    ends = [item.at_s + item.took_s for item in updates]
    seconds = [dict.fromkeys(PHASES, 0.0) for _ in ends]
    for phase, end_s, took_s in _own_times(list(_pieces(moments))):
        number = bisect_left(ends, end_s)
        if number < len(ends):
            seconds[number][phase] += took_s
    evaluated = {bisect_left(ends, item.at_s) for item in moments if _is_evaluation(item.facts)}
    steps = [number for number in range(max(1, begin), len(ends)) if seconds[number]["backward"]]
    steps = [number for number in steps if number not in without]
    usual = [number for number in steps if number not in evaluated]
    chosen = usual if 2 * len(usual) >= len(steps) else steps
    total_s = sum(ends[number] - ends[number - 1] for number in chosen)
    if total_s <= 0:
        return {}
    shares = {phase: sum(seconds[number][phase] for number in chosen) / total_s for phase in PHASES[:-1]}
    return {**shares, "other": 1.0 - sum(shares.values())}


def phase_words(shares: Mapping[str, float]) -> str:
    """Write shares in one line: `data 12 %, forward 40 %`."""
    return ", ".join(f"{phase} {100 * share:.0f} %" for phase, share in shares.items())


def _is_evaluation(facts: Any) -> bool:
    return isinstance(facts, ForwardPass) and not facts.is_grad_enabled and not facts.is_training


def _pieces(moments: Sequence[Moment[Any]]) -> Iterator[_Piece]:
    sizes = {item.facts.model: item.facts.num_parameters for item in moments if type(item.facts) is ModelUsed}
    forward_s: float | None = None
    """Since when a loss is computed."""
    for item in moments:
        phase = _PHASE_OF.get(type(item.facts))
        if isinstance(item.facts, ForwardPass):
            # A loss or a metric is a module too: it belongs to what is around it.
            is_trained = item.facts.is_grad_enabled and sizes.get(item.facts.model, 0) > 0
            phase = "forward" if is_trained else None if item.facts.is_grad_enabled else "other"
        if phase is None:
            continue
        if phase == "backward" and forward_s is not None:
            yield _Piece(forward_s, item.at_s, "forward")
        if isinstance(item.facts, _END_OF_PASS):
            forward_s = None
        elif phase == "forward" and forward_s is None:
            forward_s = item.at_s
        yield _Piece(item.at_s, item.at_s + item.took_s, phase)


def _own_times(pieces: list[_Piece]) -> Iterator[tuple[str, float, float]]:
    """Yield phases with when they ended and what they took; an inner piece is taken out of the one around."""
    around: list[_Piece] = []
    for piece in sorted(pieces, key=lambda piece: (piece.begin_s, -piece.end_s)):
        while around and around[-1].end_s <= piece.begin_s:
            around.pop()
        took_s = piece.end_s - piece.begin_s
        yield piece.phase, piece.end_s, took_s
        if around:
            yield around[-1].phase, around[-1].end_s, -took_s
        around.append(piece)
