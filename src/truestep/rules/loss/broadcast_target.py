"""Prediction and target are broadcast against each other in the loss or in a metric.

## What it finds
A loss, a difference or a product of two tensors that have the same number of values and the same shape except
for axes of length one, such as (32, 1) and (32,). The result is larger than both and is reduced to the loss.
The same for a metric: a prediction of the model that is compared with labels or subtracted from them.

## Why it matters
Each prediction is compared with every target of the batch. The best the model can do is to predict the mean
of the batch for every sample. The loss falls to the variance of the targets and stays there. A metric counts
how often any prediction is equal to any label, and the best epoch is chosen by it.
"""

from collections.abc import Iterator
from math import prod

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.flow import SHAPING, SQUARED, OperationGraph, is_total
from truestep.watch import Operation
from truestep.watch.evidence.facts.passes import BackwardPass
from truestep.watch.evidence.operation import In

RULE = Meta(
    code="LOSS03",
    severity="error",
    needs=(BackwardPass,),
    is_lasting=True,
    fix="Give prediction and target the same shape, with squeeze(-1) or unsqueeze(-1) on one of them.",
)
_TWO_SIDED = ("sub", "rsub", "mul", "div", "add", "minimum")
_COMPARISONS = ("eq", "ne", "sub", "rsub")
_LEVELS = frozenset({"arange", "linspace", "logspace"})
_RANKINGS = frozenset({"topk", "sort"})
_NEAR, _MAX_BEFORE = 6, 400


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find pairs that were meant to be compared value by value."""
    flow = evidence.flow
    for operation in flow.named(*_TWO_SIDED):
        if len(operation.ins) == 2 and _is_mistaken(flow, operation, operation.ins):
            yield _report(operation, operation.ins)
    for operation in flow.named(*_COMPARISONS):
        if len(operation.ins) == 2 and _is_mistaken_metric(flow, operation):
            yield _report(operation, operation.ins)
    before: Operation | None = None
    for operation in flow.named("expand"):  # what the functions for losses begin with
        if before is not None and operation.index == before.index + 1 and before.line == operation.line:
            pair = (before.ins[0], operation.ins[0])
            if before.outs[0].shape == operation.outs[0].shape and _is_mistaken(flow, operation, pair):
                yield _report(operation, pair)
        before = operation


def _report(operation: Operation, pair: tuple[In, ...]) -> Finding:
    first, second = (tuple(given.shape) for given in pair)
    largest = tuple(operation.outs[0].shape)
    return Finding.at(
        operation,
        "prediction and target have different shapes and are broadcast against each other",
        evidence=f"{first} and {second} give {largest}: {prod(largest)} pairs instead of {prod(first)}",
    )


def _is_mistaken(flow: OperationGraph, operation: Operation, pair: tuple[In, ...]) -> bool:
    first, second = pair
    if first.has_grad == second.has_grad or not _is_crossed(operation, pair):
        return False
    predicted = first if first.has_grad else second
    maker = flow.maker(predicted)
    if maker is None or maker.step != operation.step or maker.phase == "setup":  # a parameter
        return False
    return not _is_on_purpose(flow, operation, pair) and _is_reduced(flow, operation)


def _is_mistaken_metric(flow: OperationGraph, operation: Operation) -> bool:
    """Whether what a model gave is compared with what it did not, without gradients."""
    pair = operation.ins
    if any(given.has_grad for given in pair) or not _is_crossed(operation, pair):
        return False
    made_by = [flow.before(given, limit=_MAX_BEFORE) for given in pair]
    labels, predicted = sorted(made_by, key=_has_forward)
    if _has_forward(labels) or not _has_forward(predicted) or operation.phase == "forward":
        return False
    if any(map(_is_list, labels)):
        return False
    if any(item.kind in _RANKINGS and _is_list(item) for item in predicted if item.phase != "forward"):
        return False
    return not _is_on_purpose(flow, operation, pair) and _is_reduced(flow, operation)


def _has_forward(found: list[Operation]) -> bool:
    return any(item.phase == "forward" for item in found)


def _is_list(item: Operation) -> bool:
    """Whether it gives places, levels or the best of several: all pairs of those may be meant."""
    is_ranking = item.kind in _RANKINGS and bool(item.outs) and item.outs[0].shape[-1:] > (1,)
    return is_ranking or item.kind in _LEVELS


def _is_crossed(operation: Operation, pair: tuple[In, ...]) -> bool:
    """Whether every value of one meets every value of the other, and both have as many."""
    first, second = pair
    if not operation.outs or len(first.shape) == len(second.shape):
        return False
    return _core(first.shape) == _core(second.shape) and prod(operation.outs[0].shape) > prod(first.shape)


def _core(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def _is_on_purpose(flow: OperationGraph, operation: Operation, pair: tuple[In, ...]) -> bool:
    """Whether the same line gives one of them the shape that makes them unequal."""
    longer = max(pair, key=lambda given: len(given.shape))
    for index in range(operation.index - _NEAR, operation.index):
        near = flow.at(index)
        if near is None or near.line != operation.line or near.kind not in SHAPING:
            continue
        if near.outs[0].shape == longer.shape and near.ins[0].producer == longer.producer:
            return True
    return False


def _is_reduced(flow: OperationGraph, operation: Operation) -> bool:
    """Whether all pairs go into one number, with none of the axes treated differently before."""
    if operation.kind == "expand":
        users = [flow.at(operation.index + 1)]
        if users[0] is not None and users[0].kind in SQUARED:
            return True
        start = users[0]
    else:
        start = operation
    if start is None:
        return False
    shape = start.outs[0].shape if start.outs else ()
    for user in flow.follow(start, limit=24):
        if is_total(user):
            return True
        if user.outs and user.outs[0].shape != shape:
            return False
    return False
