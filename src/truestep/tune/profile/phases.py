"""Steps cut into phases: what a script did at each moment of a step, from the moments that `watch` has noted.

Owns which moment belongs to which phase. Forward is the pass with the loss: all between the first trained
module that is called and the backward pass. What is in no phase is `other`: evaluation, logging.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from truestep.watch import Facts, Moment
from truestep.watch.evidence.facts.loading import BatchFetched, EpochBegan
from truestep.watch.evidence.facts.optimizing import (
    ClippingCalled,
    GradientsZeroed,
    OptimizerStep,
    SchedulerStep,
)
from truestep.watch.evidence.facts.passes import BackwardPass, ForwardPass, ModelUsed
from truestep.watch.evidence.facts.surroundings import CopiedToDevice, HostWaited

_PHASE_OF: dict[type[Facts], str] = {
    BatchFetched: "data",
    EpochBegan: "data",  # workers are started there
    CopiedToDevice: "to_device",
    BackwardPass: "backward",
    OptimizerStep: "optimizer",
    GradientsZeroed: "optimizer",
    ClippingCalled: "optimizer",
    SchedulerStep: "optimizer",
}
_END_OF_PASS = (BackwardPass, OptimizerStep, BatchFetched, EpochBegan)
CLOSURE = "closure"
"""The phase of what an optimizer calls to compute the loss: no phase of its own once it is cut."""
DETAILS = "details"
"""Marks where torch.profiler begins and ends."""
_MAX_REGULAR = 0.5
"""Evaluation in more of the steps than this is a part of a step, not an interruption."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """A stretch of one step in one phase; seconds from the step's begin."""

    phase: str
    begin_s: float
    end_s: float

    @property
    def took_s(self) -> float:
        """How long it took."""
        return self.end_s - self.begin_s


@dataclass(frozen=True, kw_only=True)
class TimedStep:
    """One step, from the end of the update before it to the end of its own, without gaps."""

    begin_s: float
    """By the clock of the moments."""
    spans: tuple[Span, ...]
    is_interrupted: bool = False
    """Whether the script evaluated in it, which it does not do in most steps."""

    @property
    def took_s(self) -> float:
        """How long it took."""
        return self.spans[-1].end_s if self.spans else 0.0

    def seconds(self, phase: str) -> float:
        """Return how long it was in a phase."""
        return sum(span.took_s for span in self.spans if span.phase == phase)


@dataclass(frozen=True)
class _Piece:
    phase: str
    begin_s: float
    end_s: float
    kind: type[Facts] | None = None


def cut_steps(moments: Sequence[Moment[Any]], numbers: range) -> list[TimedStep]:
    """Return the steps of these numbers, each cut into phases; a step's number is that of steps before it."""
    ends = [
        item.at_s + item.took_s
        for item in moments
        if isinstance(item.facts, OptimizerStep) and item.facts.counts
    ]
    pieces = _flat(_relevant(moments))
    begins = [piece.begin_s for piece in pieces]
    evaluations = [item.at_s for item in moments if _is_evaluation(item)]
    wanted = [number for number in numbers if 0 < number < len(ends)]
    evaluated = {n for n in wanted if _has(evaluations, ends[n - 1], ends[n])}
    is_regular = len(evaluated) > _MAX_REGULAR * len(wanted)
    steps = []
    for number in wanted:
        begin_s, end_s = ends[number - 1], ends[number]
        first = max(0, bisect_right(begins, begin_s) - 1)
        inside = pieces[first : bisect_right(begins, end_s)]
        steps.append(
            TimedStep(
                begin_s=begin_s,
                spans=tuple(_spans(inside, begin_s, end_s)),
                is_interrupted=number in evaluated and not is_regular,
            )
        )
    return steps


def cut(moments: Sequence[Moment[Any]], *, begin_s: float, end_s: float) -> list[Span]:
    """Return what happened between two moments of the clock, counted from the first."""
    return list(_spans(_flat(_relevant(moments)), begin_s, end_s))


def _is_evaluation(moment: Moment[Any]) -> bool:
    return (
        isinstance(moment.facts, ForwardPass)
        and not moment.facts.is_grad_enabled
        and not moment.facts.is_training
    )


def _has(times: list[float], begin_s: float, end_s: float) -> bool:
    return bisect_right(times, end_s) > bisect_right(times, begin_s)


def _relevant(moments: Sequence[Moment[Any]]) -> list[_Piece]:
    """Return moments with a phase, in the order of their beginnings, outer ones first."""
    sizes = {
        item.facts.model: item.facts.num_parameters for item in moments if isinstance(item.facts, ModelUsed)
    }
    found = []
    for item in moments:
        phase = _phase_of(item, sizes)
        if phase is not None:
            end_s = item.at_s + item.took_s
            found.append(_Piece(phase, item.at_s, end_s, type(item.facts)))
    return sorted(found, key=lambda piece: (piece.begin_s, -piece.end_s))


def _phase_of(moment: Moment[Any], sizes: dict[Any, int]) -> str | None:
    if isinstance(moment.facts, ForwardPass):
        if not moment.facts.is_grad_enabled:
            return "other"
        # A loss or a metric is a module too: it belongs to what is around it.
        return "forward" if sizes.get(moment.facts.model, 0) > 0 else None
    if isinstance(moment.facts, HostWaited):  # by us, after a phase; or a closure that a step calls
        return str(moment.facts.how) if moment.facts.how != DETAILS else None
    return _PHASE_OF.get(type(moment.facts))


def _flat(pieces: list[_Piece]) -> list[_Piece]:
    """Return pieces that do not overlap: an inner one is cut out of the one around it."""
    flat: list[_Piece] = []
    open_: list[_Piece] = []
    now = 0.0

    def emit(until: float) -> None:
        nonlocal now
        if open_ and until > now:
            top = open_[-1]
            flat.append(replace(top, begin_s=max(now, top.begin_s), end_s=until))
        now = max(now, until)

    for piece in pieces:
        while open_ and open_[-1].end_s <= piece.begin_s:
            emit(open_[-1].end_s)
            open_.pop()
        emit(piece.begin_s)
        open_.append(piece)
    while open_:
        emit(open_[-1].end_s)
        open_.pop()
    # What a closure does outside of the passes is what a loop does between them.
    return _with_loss([piece for piece in flat if piece.phase != CLOSURE])


def _with_loss(flat: list[_Piece]) -> list[_Piece]:
    """Give what lies between a forward pass and the backward pass after it to forward: it makes the loss."""
    filled: list[_Piece] = []
    gaps: list[_Piece] = []
    """Since the last forward pass; whether a backward pass follows is not known yet."""
    is_after = False
    for last, piece in zip([None, *flat], flat, strict=False):
        if is_after and last is not None and piece.begin_s > last.end_s:
            gaps.append(_Piece("forward", last.end_s, piece.begin_s))
        if piece.phase == "backward":
            filled.extend(gaps)
        if piece.kind in _END_OF_PASS:
            gaps, is_after = [], False
        is_after = is_after or piece.phase == "forward"
        filled.append(piece)
    return sorted(filled, key=lambda piece: piece.begin_s)


def _spans(pieces: Iterable[_Piece], begin_s: float, end_s: float) -> Iterable[Span]:
    """Yield the pieces between two times and what lies between them, counted from the first."""
    now = begin_s
    for piece in pieces:
        begin, end = max(piece.begin_s, now), min(piece.end_s, end_s)
        if end <= begin:
            continue
        if begin > now:
            yield Span(phase="other", begin_s=now - begin_s, end_s=begin - begin_s)
        yield Span(phase=piece.phase, begin_s=begin - begin_s, end_s=end - begin_s)
        now = end
    if now < end_s:
        yield Span(phase="other", begin_s=now - begin_s, end_s=end_s - begin_s)
