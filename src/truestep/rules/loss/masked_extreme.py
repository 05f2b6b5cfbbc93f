"""A smallest or largest value is one that a mask has set to 0.

## What it finds
`min` along an axis of values that are never negative, such as distances, or `max` along an axis of values
that are never positive, such as log-probabilities, where a mask has set some of them to 0.

## Why it matters
The masked places were meant to be left out, and a 0 is smaller than every distance, or larger than every log
probability. The result is 0 for every sample and has no gradient: the term that is made of it, such as the
distance to the hardest negative sample, never changes.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.flow import COMPARISONS, OperationGraph, number_of, place_of
from truestep.rules.kit.formula import find, given, op, trained
from truestep.rules.kit.grouping import lasting
from truestep.watch.evidence.facts.passes import BackwardPass
from truestep.watch.evidence.operation import In

RULE = Meta(
    code="LOSS17",
    severity="error",
    needs=(BackwardPass,),
    fix='Fill masked places with float("inf") before min, or with float("-inf") before max.',
)
_MASK = op(" ".join(COMPARISONS | {"bitwise_not", "logical_not", "bitwise_and", "logical_and"}))
_MASKED = (trained("values") * _MASK, op("masked_fill", trained("values"), given("mask"), number=0))
_FORMULAS = [
    (sign, op(kinds, masked.named("masked")))
    for sign, kinds in ((1, "min amin"), (-1, "max amax"))
    for masked in _MASKED
]
_SIGNS = dict.fromkeys(("_log_softmax", "log_sigmoid_forward"), -1) | dict.fromkeys(
    ("_cdist_forward", "linalg_vector_norm", "sqrt", "abs", "relu", "exp", "sigmoid", "softplus", "_softmax"),
    1,
)
_KEEPING = frozenset({"sum", "mean", "clone", "contiguous", "_to_copy", "clamp_min"})


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find extremes of values to which a mask was applied that gives the extreme value."""
    flow = evidence.flow
    found = {
        match.place: match.parts["masked"]
        for sign, formula in _FORMULAS
        for match in find(flow, formula)
        if match.place.outs[0].shape and _sign_of(flow, match.tensors["values"]) == sign
    }
    for extremes in lasting(found):
        name, bound = ("smallest", "below") if "min" in extremes[0].kind else ("largest", "above")
        yield Finding.at(
            extremes[0],
            f"the {name} value is always one that the mask has set to 0",
            count=len(extremes),
            evidence=f"of values of shape {extremes[0].ins[0].shape} none is {bound} 0, and the mask "
            f"that sets some to 0 is applied {place_of(found[extremes[0]], extremes[0].file)}",
        )


def _sign_of(flow: OperationGraph, tensor: In) -> int | None:
    """Return 1 for values that are never negative, -1 for those that are never positive."""
    item = flow.source(tensor, _KEEPING)
    is_squared = item is not None and item.kind == "pow" and number_of(item) == 2
    return 1 if is_squared else _SIGNS.get(item.kind) if item is not None else None
