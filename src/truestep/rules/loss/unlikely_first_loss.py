"""The first loss is far above that of random guessing.

## What it finds
A cross entropy over K classes whose first value, from a model whose weights were not loaded, is more than
three times ln K. ln K is the loss of a model that finds all classes equally likely.

## Why it matters
An untrained model should have no preference. One that starts far above ln K is sure of wrong answers: its
scores are large because of the last layer's initialization or unscaled inputs. The first steps are spent on
unlearning, with large gradients, and some models do not recover.

## How to fix
Initialize the last layer with small weights (or zeros), and scale the inputs to zero mean and unit variance.
"""

from collections.abc import Iterator
from math import log

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.analysis.flow import LINEAR, OperationGraph
from truestep.watch import Operation
from truestep.watch.evidence.facts.passes import ClassesScored
from truestep.watch.evidence.facts.structure import FileLoaded, StateLoaded

RULE = Meta(
    code="LOSS10",
    severity="warning",
    needs=(ClassesScored,),
    caused_by=("DATA07",),
    is_lasting=True,
    fix="Initialize the last layer with small weights, and scale the inputs to unit variance.",
    is_preview=True,
)
_MAX_RATIO = 3.0
_MIN_SCORED = 8


def is_observed(evidence: Evidence) -> bool:
    """Whether the loss of a fresh classifier was read."""
    return not _is_loaded(evidence) and any(moment.step == 0 for moment in evidence.of(ClassesScored))


def _is_loaded(evidence: Evidence) -> bool:
    """Whether weights were loaded, or may have been."""
    return evidence.is_part or any(moment.step == 0 for moment in evidence.of(StateLoaded, FileLoaded))


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find first losses that are too high."""
    flow = evidence.flow
    met: set[tuple[str | None, int | None]] = set()
    for moment in evidence.of(ClassesScored):
        place, facts = (moment.file, moment.line), moment.facts
        if moment.step or place in met:
            continue
        met.add(place)
        operation, num_classes = flow.at(facts.operation_index), facts.num_classes
        if facts.reduction != "mean" or facts.is_weighted or num_classes < 2:
            continue
        if facts.num_scored < _MIN_SCORED or operation is None or not _is_plain(flow, operation):
            continue
        if isinstance(facts.loss, float) and facts.loss > _MAX_RATIO * log(num_classes):
            yield Finding.at(
                moment,
                "the first loss of an untrained classifier is far above that of guessing",
                evidence=f"{facts.loss:.3g} in the first step; {num_classes} equally likely classes "
                f"give ln {num_classes} = {log(num_classes):.3g}",
            )


def _is_plain(flow: OperationGraph, operation: Operation) -> bool:
    """Whether the scores come straight from a layer, not from distances or margins."""
    normalised = flow.maker(operation.ins[0])
    if normalised is None or normalised.name != "aten._log_softmax.default":
        return False
    maker = flow.maker(normalised.ins[0])
    while maker is not None and maker.name in ("aten.clone.default", "aten._to_copy.default"):
        maker = flow.maker(maker.ins[0])
    return maker is not None and maker.name in LINEAR and maker.phase == "forward"
