"""The KL term of a VAE is a sum over the batch, and the reconstruction is a mean.

## What it finds
A loss that adds the mean of a reconstruction error over all values of a batch to the sum of the KL
divergence over the same batch, with no factor on either of them. A KL term that is divided by the batch size,
or that has a weight other than 1, is not reported. Also a KL term that is averaged over the encoded values of
a sample, beside a reconstruction that is summed over the sample's values.

## Why it matters
In the evidence lower bound both terms are sums for each sample. With a mean over pixels, the KL term weighs
as many times too much as the batch has values. The encoder then ignores its input (posterior collapse), and
the decoder gives the mean image. The balance also changes with the batch size.
"""

from collections.abc import Iterator
from itertools import permutations
from math import prod

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.flow import ERRORS, REDUCTIONS, OperationGraph, is_total, number_of, place_of
from truestep.rules.kit.formula import terms
from truestep.rules.kit.grouping import lasting
from truestep.watch import Operation
from truestep.watch.evidence.facts.passes import BackwardPass

RULE = Meta(
    code="LOSS13",
    severity="error",
    needs=(BackwardPass,),
    fix='Sum both terms over the values of each sample (reduction="sum"), and average them over the batch.',
)
_LEAST_BATCH = (4,)
_CURVES, _SCALING = frozenset({"exp", "expm1", "log"}), frozenset({"sum", "neg", "mul", "div"})
_ELEMENTWISE = _CURVES | _SCALING | {"add", "sub", "rsub", "pow"}
_MIXED = {
    ("mean", "sum"): "a sum over the batch, but the reconstruction is a mean",
    ("row sum", "row mean"): "a mean over the encoded values, but the reconstruction is a sum",
}


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find sums of an error and of a divergence that are reduced in different ways."""
    flow = evidence.flow
    found: dict[Operation, Operation] = {}
    for total in flow.named("add", "sub"):
        parts = terms(flow, total) if len(total.outs[0].shape) < 2 else ()
        for (weight, error), (other, divergence) in permutations(parts, 2):
            is_mixed = (_how(error), _how(divergence)) in _MIXED
            if is_mixed and abs(weight) == 1 and abs(other) in (0.5, 1) and _is_kl(flow, error, divergence):
                found[divergence] = error
    for divergences in lasting(found):
        divergence, error = divergences[0], found[divergences[0]]
        yield Finding.at(
            divergence,
            f"the KL term is {_MIXED[_how(error), _how(divergence)]}",
            count=len(divergences),
            evidence=f"the divergence has shape {divergence.ins[0].shape}, the error has shape "
            f"{error.ins[0].shape} {place_of(error, divergence.file)}, and neither has a weight",
        )


def _how(item: Operation) -> str:
    """Return how values become one number, or one for each sample."""
    if item.kind in ERRORS:  # without a number the reduction is torch's own: the mean
        return "mean" if not {"0", "2"}.intersection(map(str, item.given[2:])) else ""
    return ("" if is_total(item) else "row ") + item.kind if item.kind in REDUCTIONS else ""


def _is_kl(flow: OperationGraph, error: Operation, total: Operation) -> bool:
    """Whether a sum is over a divergence of what the model computes for the same batch."""
    one, other = error.ins[0], total.ins[0]
    batch, made = one.shape[:1], flow.source(other, _SCALING)
    if made is None or batch < _LEAST_BATCH or batch != other.shape[:1] or prod(one.shape) == batch[0]:
        return False  # one value for each sample: mean over the batch, and nothing else
    steps = flow.before(other, lambda item: item.ins if item.kind in _ELEMENTWISE else ())
    inputs = [tensor for item in steps if item.kind in _ELEMENTWISE for tensor in item.ins]
    has_data = any(not tensor.has_grad and tensor.shape[:1] == batch for tensor in inputs)
    parts = [item for _, item in terms(flow, made)]
    has_square = any((item.kind, number_of(item)) == ("pow", 2) for item in parts)
    return one.has_grad and not has_data and has_square and any(item.kind in _CURVES for item in parts)
