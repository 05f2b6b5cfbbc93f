"""Cross entropy runs over one class, so the loss is constant.

## What it finds
A softmax over an axis of length one that ends in a loss: `CrossEntropyLoss` on a model with one output, or
a softmax over one output before another loss.

## Why it matters
The softmax of one number is always 1. The loss is the same in every step, its gradient is zero, and the model
learns nothing.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.flow import BINARY, NLL, OperationGraph, place_of, size_of
from truestep.watch import Operation
from truestep.watch.evidence.facts.passes import BackwardPass

RULE = Meta(
    code="LOSS05",
    severity="error",
    is_observed=lambda evidence: evidence.flow.has("_softmax", "_log_softmax", "_safe_softmax"),
    needs=(BackwardPass,),
    is_lasting=True,
    fix="Use BCEWithLogitsLoss for one output, or give the model one output for each class.",
)
_NAMES = ("_log_softmax", "_softmax")
_LOSSES = NLL | BINARY | {"mse_loss", "log"}


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find losses over one class."""
    flow = evidence.flow
    several = {(item.file, item.line) for item in flow.named(*_NAMES) if size_of(item) > 1}
    for operation in flow.named(*_NAMES):
        given = operation.ins[0]
        if size_of(operation) != 1 or not given.has_grad or max(given.shape) < 2:
            continue
        if (operation.file, operation.line) in several:  # a list that now and then has one entry
            continue
        loss = _loss_of(flow, operation)
        if loss is not None:
            yield Finding.at(
                loss,
                "the loss is a cross entropy over one class: it is constant",
                evidence=f"softmax {place_of(operation, loss.file)} over the one class of "
                f"{tuple(given.shape)} gives 1 for every sample, with gradient zero",
            )


def _loss_of(flow: OperationGraph, operation: Operation) -> Operation | None:
    users = flow.users(operation)
    if operation.kind == "_log_softmax":  # with probabilities as targets: products and sums
        found = next((user for user in users if user.kind in _LOSSES), None)
        return found or next((user for user in users if user.kind == "mul"), None)
    return next((user for user in users if user.kind in _LOSSES), None)
