"""A ReLU is applied to the scores of a classifier.

## What it finds
A loss over classes (`cross_entropy`, `binary_cross_entropy_with_logits`) whose scores come straight out of a
ReLU, with only copies, views or factors in between.

## Why it matters
The loss expects scores of any sign. A ReLU cuts off all negative ones, so the model cannot mark a class as
unlikely. A score that is zero gets no gradient: the sample does not change what the model thinks of that
class.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.flow import OperationGraph, place_of, size_of

_LOSSES = ("_log_softmax", "binary_cross_entropy_with_logits")
RULE = Meta(
    code="LOSS12",
    severity="warning",
    is_observed=lambda evidence: evidence.flow.has(*_LOSSES),
    fix="Remove the ReLU after the last layer: the loss takes scores of any sign.",
)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find losses whose input is the output of a ReLU."""
    yield from [*_find(evidence.flow, is_trained=True)] or _find(evidence.flow, is_trained=False)


def _find(flow: OperationGraph, *, is_trained: bool) -> Iterator[Finding]:
    for operation in flow.named(*_LOSSES):
        scores = operation.ins[0]
        is_over_classes = operation.kind != "_log_softmax" or size_of(operation) > 1
        is_scored = is_over_classes and flow.is_scored(scores, is_trained=is_trained)
        first = flow.source(scores) if is_scored else None
        if first is not None and first.kind == "relu":
            yield Finding.at(
                operation,
                "the scores of the loss come out of a ReLU: none is negative",
                evidence=f"relu {place_of(first, operation.file)}, then the loss",
            )
