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
from math import prod
from typing import NamedTuple

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.flow import ERRORS, OperationGraph, is_total, number_of, place_of
from truestep.watch import Operation
from truestep.watch.evidence.facts.passes import BackwardPass
from truestep.watch.evidence.operation import In

RULE = Meta(
    code="LOSS13",
    severity="error",
    needs=(BackwardPass,),
    fix='Sum the reconstruction too (reduction="sum"), and divide both terms by the batch size.',
)
_CURVES, _COPIES = {"exp", "log", "expm1"}, {"_to_copy", "clone", "sum"}
_ELEMENTWISE = _CURVES | {"add", "sub", "mul", "div", "rsub", "neg", "pow", "square", "clamp"} | _COPIES
_NATURAL = (0.5, 1.0)
_LEAST_BATCH, _LEAST_STEPS, _MAX_TREE = 4, 2, 40


class _Pair(NamedTuple):
    error: Operation
    divergence: Operation


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find sums of an error and of a divergence that are reduced in different ways."""
    flow = evidence.flow
    yield from _averaged_divergences(flow)
    found: dict[tuple[str | None, int | None], dict[int, _Pair]] = {}
    for pair in _find_pairs(flow):
        place = (pair.divergence.file, pair.divergence.line)
        found.setdefault(place, {}).setdefault(pair.divergence.step, pair)
    for pairs in found.values():
        if len(pairs) < _LEAST_STEPS:
            continue
        error, divergence = pairs[min(pairs)]
        one, other = (item.ins[0].shape for item in (error, divergence))
        yield Finding.at(
            divergence,
            "the KL term is a sum over the batch, but the reconstruction is a mean",
            count=len(pairs),
            evidence=f"the divergence of shape {_text(other)} is summed, the error of shape {_text(one)} "
            f"{place_of(error, divergence.file)} is averaged, and neither has a weight",
            cost=f"the KL term counts {prod(one)} times as much as in the evidence lower bound",
        )


def _averaged_divergences(flow: OperationGraph) -> Iterator[Finding]:
    """Find divergences that are averaged over what is encoded, beside an error that is summed over it."""
    found: dict[tuple[str | None, int | None], list[_Pair]] = {}
    for total in flow.named("add"):
        if len(total.ins) != 2 or total.ins[0].shape != total.ins[1].shape or len(total.ins[0].shape) > 1:
            continue
        terms = [_of_samples(flow, given) for given in total.ins if given.has_grad]
        for error, divergence in (
            (terms, terms[::-1]) if len(terms) == 2 and "alpha" not in total.options else ()
        ):
            if error is None or divergence is None or is_total(error) or is_total(divergence):
                continue
            is_mixed = error.kind == "sum" and divergence.kind == "mean"
            if is_mixed and _is_divergence(flow, error, divergence):
                found.setdefault((divergence.file, divergence.line), []).append(_Pair(error, divergence))
    for pairs in found.values():
        error, divergence = pairs[0]
        shape = divergence.ins[0].shape
        if len({pair.divergence.step for pair in pairs}) >= _LEAST_STEPS:
            yield Finding.at(
                divergence,
                "the KL term is a mean over the encoded values, but the reconstruction is a sum",
                count=len(pairs),
                evidence=f"the divergence of shape {_text(shape)} is averaged for each sample, and the error "
                f"of shape {_text(error.ins[0].shape)} {place_of(error, divergence.file)} is summed",
                cost=f"the KL term counts 1/{shape[-1]} of what it does in the evidence lower bound",
                fix="Sum the KL term over the encoded values of each sample, as the reconstruction.",
                severity="warning",
            )


def _of_samples(flow: OperationGraph, given: In) -> Operation | None:
    """Return what made one number for each sample, before factors of 1 or 0.5 and a mean over the batch."""
    for _ in range(2):
        made = _reduced(flow, given)
        if made is None or made[1] not in _NATURAL:
            return None
        if made[0].kind != "mean" or not is_total(made[0]) or len(made[0].ins[0].shape) != 1:
            return made[0]
        given = made[0].ins[0]
    return None


def _text(shape: tuple[int, ...]) -> str:
    return str(tuple(shape))


def _find_pairs(flow: OperationGraph) -> Iterator[_Pair]:
    for total in flow.named("add", "sub"):
        if len(total.ins) != 2 or any(given.shape or not given.has_grad for given in total.ins):
            continue
        if "alpha" in total.options:
            continue
        terms = [_reduced(flow, given) for given in total.ins]
        for one, other in (terms, terms[::-1]):
            if one is None or other is None or one[1] != 1.0 or other[1] not in _NATURAL:
                continue
            error, divergence = one[0], other[0]
            is_mixed = _is_mean(error) and divergence.kind == "sum" and is_total(divergence)
            if is_mixed and _is_divergence(flow, error, divergence):
                yield _Pair(error, divergence)


def _reduced(flow: OperationGraph, given: In) -> tuple[Operation, float] | None:
    """Return what made a number, and the size of the factor it is multiplied by; None if it is not known."""
    item, factor = flow.maker(given), 1.0
    while item is not None and item.kind in ("neg", "mul", "div"):
        if len(item.ins) != 1:
            return None
        if item.kind != "neg":
            number = number_of(item)
            if not number:
                return None
            factor = factor * number if item.kind == "mul" else factor / number
        item = flow.maker(item.ins[0])
    return None if item is None else (item, abs(factor))


def _is_mean(item: Operation) -> bool:
    if item.kind in ERRORS:
        # Without a number the reduction is torch's own: the mean.
        return not any(str(value) in ("0", "2") for value in item.given[2:])
    return item.kind == "mean" and is_total(item)


def _is_divergence(flow: OperationGraph, error: Operation, total: Operation) -> bool:
    """Whether a sum is over a divergence of what the model computes for the same batch."""
    one, other = error.ins[0], total.ins[0]
    if not one.shape or not other.shape or one.shape[0] != other.shape[0] or one.shape[0] < _LEAST_BATCH:
        return False
    if prod(one.shape) == one.shape[0] or not one.has_grad:
        return False  # one value for each sample: mean over the batch, and nothing else
    seen: list[Operation] = []
    queue = [other]
    while queue:
        given = queue.pop()
        item = flow.maker(given)
        if item is not None and item.kind in _ELEMENTWISE and len(seen) < _MAX_TREE:
            seen.append(item)
            queue += item.ins
        elif not given.has_grad and given.shape[:1] == other.shape[:1]:
            return False  # data go into it: an error of its own
    names = {item.kind for item in seen}
    return bool(names & _CURVES) and any(_is_square(item) for item in seen)


def _is_square(item: Operation) -> bool:
    if item.kind == "pow":
        return number_of(item) == 2
    is_product = item.kind == "mul" and len(item.ins) == 2
    return item.kind == "square" or (is_product and item.ins[0].producer == item.ins[1].producer)
