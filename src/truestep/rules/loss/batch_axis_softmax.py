"""Softmax runs over the batch.

## What it finds
A softmax or log-softmax over the first axis of a tensor whose first axis is the batch, and whose result keeps
that axis up to the loss. Weights that pool over the first axis (attention over instances, nodes or time) and
square similarity matrices are not reported.

## Why it matters
The probabilities of one sample depend on the other samples of its batch, and do not sum to one over the
classes. The loss still falls in training. With another batch, or a single sample, the model fails.

## How to fix
Pass `dim=-1` (or the axis of the classes). Without `dim`, three-dimensional inputs are normalized over axis
0.
"""

from collections.abc import Iterator
from math import prod

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.flow import REDUCTIONS, OperationGraph, axes_of, axis_of, is_total
from truestep.watch import Operation
from truestep.watch.evidence.facts.passes import BackwardPass, ForwardPass

RULE = Meta(
    code="LOSS04",
    severity="warning",
    needs=(ForwardPass, BackwardPass),
    is_lasting=True,
    fix="Normalize over the axis of the classes: dim=-1, or dim=1 for (batch, classes, ...).",
)
_NAMES = ("_softmax", "_log_softmax")
_POOLING = frozenset({"mm", "bmm", "addmm", "dot", "mv"})
_PICKING = frozenset({"sort", "max", "argmax"})


def is_observed(evidence: Evidence) -> bool:
    """Whether a softmax of several axes was computed in training."""
    found = evidence.flow.named(*_NAMES)
    return any(item.ins[0].has_grad and len(item.ins[0].shape) > 1 for item in found)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find softmaxes over the batch that are not used to pool it."""
    flow = evidence.flow
    sizes = _batch_sizes(evidence)
    for operation in flow.named(*_NAMES):
        given = operation.ins[0]
        if axis_of(operation) != 0 or not given.has_grad or len(given.shape) not in (2, 3):
            continue
        batch, classes = given.shape[0], _num_classes(given.shape)
        if batch not in sizes.get(operation.step, ()) or min(batch, classes) < 2 or batch == classes:
            continue
        if _reaches_loss(flow, operation):
            yield Finding.at(
                operation,
                "softmax runs over the batch, not over the classes",
                evidence=f"dim=0 of {tuple(given.shape)}, where {batch} is the batch: "
                f"each of the {classes} columns sums to 1 over the samples",
            )


def _num_classes(shape: tuple[int, ...]) -> int:
    """Return the length of the last axis that is more than one long."""
    return next((size for size in reversed(shape[1:]) if size > 1), 1)


def _batch_sizes(evidence: Evidence) -> dict[int, set[int]]:
    """Return the length of the first axis of what models were given, by step."""
    found: dict[int, set[int]] = {}
    for moment in evidence.of(ForwardPass):
        if moment.facts.is_training:
            shapes = list(_shapes(moment.facts.tensors))
            if shapes:
                found.setdefault(moment.step, set()).add(shapes[0][0])
    return found


def _shapes(outline: object) -> Iterator[list[int]]:
    """Return the shapes in an outline of tensors."""
    if isinstance(outline, list):
        if outline and all(isinstance(size, int) for size in outline):
            yield outline
        else:
            for item in outline:
                yield from _shapes(item)


def _reaches_loss(flow: OperationGraph, operation: Operation) -> bool:
    """Whether one number is made of it before its first axis is summed or chosen from."""
    shape = operation.outs[0].shape
    is_reached = False
    for user in flow.follow(operation, limit=60):
        if user.kind in _POOLING and _sums_first(user, shape):
            return False
        if user.kind in REDUCTIONS | _PICKING and user.ins[0].shape[:1] == shape[:1] and 0 in axes_of(user):
            return False
        is_reached = is_reached or is_total(user) or user.kind in ("nll_loss_forward", "mse_loss")
    return is_reached


def _sums_first(user: Operation, shape: tuple[int, ...]) -> bool:
    """Whether a product of matrices takes these weights and sums over what was their first axis."""
    if len(shape) == 2:
        return any(given.shape != shape and set(given.shape) == set(shape) for given in user.ins)
    is_given = any(prod(given.shape) == prod(shape) for given in user.ins)
    return is_given and user.ins[-2].shape[-1] == shape[0]
