"""A sigmoid is applied twice, or is missing before a loss over probabilities.

## What it finds
`binary_cross_entropy_with_logits` on the output of a sigmoid (or a softmax), a sigmoid of a sigmoid that ends
in a loss, and `binary_cross_entropy` on raw scores that were clamped to its range.

## Why it matters
The sigmoid of a number between zero and one is between 0.5 and 0.73: the model cannot predict "no", and the
gradients shrink. Clamped scores are worse: outside the range, a score's gradient is zero.

## How to fix
Pass raw scores to `binary_cross_entropy_with_logits`, which is also numerically safe. Apply the sigmoid only
where you need probabilities.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.flow import BINARY, LINEAR, OperationGraph, place_of
from truestep.watch import Operation
from truestep.watch.evidence.facts.passes import ProbabilitiesScored

RULE = Meta(
    code="LOSS02",
    severity="error",
    is_observed=lambda evidence: evidence.flow.has(*BINARY),
    is_lasting=True,
    fix="Pass the raw scores to binary_cross_entropy_with_logits, with no sigmoid and no clamp before it.",
)
_BOUNDED = frozenset({"sigmoid", "_softmax"})
_CLAMPS = frozenset({"clamp", "hardtanh", "clip"})
_MIN_SHARE = 0.05
_MIN_VALUES = 16


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find losses over two classes whose input has one sigmoid too many, or none."""
    yield from [*_find(evidence, is_trained=True)] or _find(evidence, is_trained=False)


def _find(evidence: Evidence, *, is_trained: bool) -> Iterator[Finding]:
    flow = evidence.flow
    for operation in flow.named("binary_cross_entropy_with_logits"):
        first = (
            flow.source(operation.ins[0]) if flow.is_scored(operation.ins[0], is_trained=is_trained) else None
        )
        if first is not None and first.kind in _BOUNDED:
            yield _twice(operation, first)
    read = {moment.facts.operation_index: moment.facts for moment in evidence.of(ProbabilitiesScored)}
    for operation in flow.named("binary_cross_entropy"):
        first = (
            flow.source(operation.ins[0]) if flow.is_scored(operation.ins[0], is_trained=is_trained) else None
        )
        if first is None:
            continue
        before = flow.source(first.ins[0]) if first.kind == "sigmoid" else None
        if before is not None and before.kind in _BOUNDED:
            yield _twice(operation, before)
        facts = read.get(operation.index)
        if first.kind in LINEAR and facts is not None and _is_clamped(flow, operation):
            share = facts.edge_share
            if share >= _MIN_SHARE and facts.num_values >= _MIN_VALUES:
                yield Finding.at(
                    operation,
                    "raw scores are clamped and used as probabilities: a sigmoid is missing",
                    evidence=f"scores come from {first.name} {place_of(first, operation.file)}; {share:.0%} "
                    f"of {facts.num_values} are at the limits of the clamp, where the gradient is zero",
                )


def _twice(operation: Operation, first: Operation) -> Finding:
    name = "softmax" if "softmax" in first.name else "sigmoid"
    return Finding.at(
        operation,
        f"the loss applies a sigmoid to the output of a {name}",
        evidence=f"{name} {place_of(first, operation.file)}, then another sigmoid",
    )


def _is_clamped(flow: OperationGraph, operation: Operation) -> bool:
    maker = flow.maker(operation.ins[0])
    while maker is not None and maker.kind not in LINEAR:
        if maker.kind in _CLAMPS:
            return True
        maker = flow.maker(maker.ins[0]) if maker.ins else None
    return False
