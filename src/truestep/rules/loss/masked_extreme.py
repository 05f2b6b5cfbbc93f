"""A smallest or largest value is always one that a mask has set to 0.

## What it finds
`min` or `max` along an axis of values that were multiplied by a mask, or filled with 0 by one, where the
result is exactly 0 in every row although every row has other values.

## Why it matters
The masked places were meant to be left out, and a 0 is smaller than every distance, or larger than every log
probability. The result is 0 for every sample and has no gradient: the term that is made of it, such as the
distance to the hardest negative sample, never changes.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.flow import COMPARISONS, OperationGraph, number_of, place_of
from truestep.watch import Operation
from truestep.watch.evidence.facts.passes import BackwardPass, ExtremesZero
from truestep.watch.evidence.operation import In

RULE = Meta(
    code="LOSS17",
    severity="error",
    needs=(BackwardPass,),
    fix='Fill masked places with float("inf") before min, or with float("-inf") before max.',
)
_LEAST_STEPS = 2
_FORMS = COMPARISONS | {"bitwise_not", "logical_not", "bitwise_and", "logical_and"}
_COPIES = frozenset({"_to_copy", "clone", "fill_diagonal"})


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find extremes that are 0 everywhere, of values to which a mask was applied."""
    flow = evidence.flow
    found: dict[tuple[str | None, int | None], dict[int, tuple[Operation, Operation, int]]] = {}
    for moment in evidence.of(ExtremesZero):
        extreme = flow.at(moment.facts.operation_index)
        masking = flow.maker(extreme.ins[0]) if extreme is not None else None
        if extreme is not None and masking is not None and _is_masking(flow, masking):
            steps = found.setdefault((extreme.file, extreme.line), {})
            steps.setdefault(extreme.step, (extreme, masking, moment.facts.num_rows))
    for steps in found.values():
        if len(steps) < _LEAST_STEPS:
            continue
        extreme, masking, num_rows = steps[min(steps)]
        name = "smallest" if "min" in extreme.name else "largest"
        yield Finding.at(
            extreme,
            f"the {name} value is always one that the mask has set to 0",
            count=len(steps),
            evidence=f"in all {num_rows} rows of {tuple(extreme.ins[0].shape)} the {name} value is 0, "
            f"and every row has other values; the mask is applied {place_of(masking, extreme.file)}",
        )


def _is_masking(flow: OperationGraph, item: Operation) -> bool:
    if item.kind == "masked_fill":
        return number_of(item) == 0
    if item.kind != "mul" or len(item.ins) != 2:
        return False
    return any(_is_mask(flow, given) for given in item.ins if not given.has_grad)


def _is_mask(flow: OperationGraph, given: In) -> bool:
    """Whether it was made by a comparison, and maybe made numbers of."""
    maker = flow.maker(given)
    while maker is not None and maker.kind in _COPIES and maker.ins:
        maker = flow.maker(maker.ins[0])
    return maker is not None and maker.kind in _FORMS
