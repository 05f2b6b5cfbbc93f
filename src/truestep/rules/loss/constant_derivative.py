"""A derivative in the loss has no graph: `create_graph=True` is missing.

## What it finds
A derivative for the inputs of a trained model, from `torch.autograd.grad` without `create_graph=True`, that
is added to or subtracted from a part of the loss: a gradient penalty, the residual of an equation, forces.
Derivatives that make another input (attacks, sampling) or multiply a term are not reported.

## Why it matters
Without a graph the derivative is a constant for the backward pass. A penalty on it changes the reported loss
and nothing in the model; an equation or a force is fitted only by the terms without a derivative.
"""

from collections.abc import Iterator
from operator import attrgetter

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.flow import LINEAR, OperationGraph, place_of
from truestep.watch import Operation
from truestep.watch.evidence.facts.passes import BackwardPass, DerivativeTaken
from truestep.watch.evidence.operation import In

RULE = Meta(
    code="LOSS16",
    severity="error",
    needs=(BackwardPass, DerivativeTaken),
    fix="Pass create_graph=True to torch.autograd.grad(), since its result is part of the loss.",
)
_RECURRENT = ("lstm", "rnn", "gru", "_cell")
_MAX_WALK = 200
Place = tuple[str | None, int | None]


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find sums of a part that has a gradient and a derivative that has none."""
    taken: dict[bool, set[Place]] = {True: set(), False: set()}
    for moment in evidence.of(DerivativeTaken):
        taken[moment.facts.has_graph].add((moment.file, moment.line))
    places = taken[False]
    if not places:
        return
    flow = evidence.flow
    derivatives = _Derivatives(flow, evidence.operations, places)
    for operation in flow.named("add", "sub", "rsub"):
        if len(operation.ins) != 2:
            continue
        for kept, lost in (operation.ins, operation.ins[::-1]):
            found = derivatives.before(lost) if kept.has_grad and not lost.has_grad else None
            if found is not None and derivatives.is_trained_by(operation, kept):
                yield Finding.at(
                    found,
                    "this derivative has no graph, so its part of the loss has no gradient: "
                    "create_graph=True is missing",
                    evidence="the derivative is a constant for the backward pass; "
                    f"{place_of(operation, found.file)} it is added to what has a gradient",
                )


class _Derivatives:
    """What `torch.autograd.grad` gave without a graph, and which operations a backward pass goes through."""

    def __init__(
        self, flow: OperationGraph, operations: tuple[Operation, ...] | list[Operation], places: set[Place]
    ) -> None:
        self._flow = flow
        passed = [item for item in operations if item.phase == "backward"]
        self._made = {item.index: item for item in passed if (item.file, item.line) in places}
        self._through = {
            (item.step, item.forward_name, item.forward_file, item.forward_line)
            for item in passed
            if item.index not in self._made
        }

    def before(self, lost: In) -> Operation | None:
        """Return the first derivative that a tensor comes from, without anything that has a gradient."""
        between = self._flow.before(lost, _without_gradient, limit=_MAX_WALK)
        given = [lost, *(item for operation in between for item in _without_gradient(operation))]
        found = [self._made[item.producer] for item in given if item.producer in self._made]
        return min(found, key=attrgetter("index"), default=None)

    def is_trained_by(self, operation: Operation, kept: In) -> bool:
        """Whether a backward pass goes through the sum, and the sum is no input of a further layer."""
        after = [operation, *self._flow.follow(operation)]
        for item in after:
            is_input = item.phase == "forward" and operation.phase != "forward"
            if is_input or item.kind in LINEAR or any(name in item.name for name in _RECURRENT):
                return False
        # A sum needs no operation in the backward pass: what it adds does.
        return any(map(self._is_passed, after)) or any(map(self._is_passed, self._parts(kept)))

    def _is_passed(self, item: Operation) -> bool:
        return (item.step, item.name, item.file, item.line) in self._through

    def _parts(self, kept: In) -> list[Operation]:
        """Return what a tensor was computed from, without the passes of models."""
        found = self._flow.before(kept, _outside, limit=_MAX_WALK)
        return [item for item in found if item.phase != "forward"]


def _without_gradient(operation: Operation) -> tuple[In, ...]:
    """Return what went in, unless a part of it has a gradient: then that was cut on purpose."""
    return () if any(item.has_grad for item in operation.ins) else operation.ins


def _outside(operation: Operation) -> tuple[In, ...]:
    return () if operation.phase == "forward" else operation.ins
