"""Inputs and labels of one step are shuffled by two different permutations.

## What it finds
A step that indexes its inputs with one call of `torch.randperm` and their labels with another one, and
compares the outputs with these labels. In mixup, inputs are then mixed with other samples than labels.
The rule follows the operations of the first steps.

Also labels that are rolled, flipped or shuffled on their way into the loss while the inputs keep their order,
and batches of a loader whose labels reach the loss in another order than their inputs reach the model.

## Why it matters
A label that belongs to another sample is noise. Mixup then trains on pairs of which a part is always wrong:
training runs, accuracy suffers, and no shape is wrong.

## How to fix
Draw one permutation and index both with it: `order = torch.randperm(len(x))`, then `x[order]` and `y[order]`.
"""

from collections.abc import Iterator
from typing import NamedTuple

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.data._reordered import find_reordered
from truestep.rules.kit.flow import NLL, OperationGraph, number_of, place_of
from truestep.rules.kit.syntax import walk
from truestep.rules.kit.where import Function, calls, covers
from truestep.watch import Operation
from truestep.watch.evidence.facts.passes import BackwardPass

RULE = Meta(
    code="DATA14",
    severity="error",
    needs=(BackwardPass,),
    fix="Draw one permutation and index inputs and labels with it.",
)
_LEAST_STEPS, _LEAST_ROWS = 2, 4


class _Pair(NamedTuple):
    inputs: Operation
    labels: Operation
    loss: Operation


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find labels in a loss that were shuffled in another way than the inputs."""
    yield from find_reordered(evidence)
    flow = evidence.flow
    found: dict[tuple[str | None, int | None], dict[int, _Pair]] = {}
    for pair in _find_pairs(flow):
        place = (pair.labels.file, pair.labels.line)
        found.setdefault(place, {}).setdefault(pair.loss.step, pair)
    for pairs in found.values():
        if len(pairs) < _LEAST_STEPS:
            continue
        pair = pairs[min(pairs)]
        rows = pair.labels.ins[0].shape[0]
        line = _called_at(evidence, pair)
        yield Finding.at(
            pair.labels,
            line=line,
            message="inputs and labels are shuffled by two different permutations",
            count=len(pairs),
            evidence=f"in {len(pairs)} steps, inputs of shape {tuple(pair.inputs.ins[0].shape)} were "
            f"indexed by one random permutation of {rows} ({place_of(pair.inputs, pair.labels.file)}) and "
            f"their labels by another one; the loss {place_of(pair.loss, pair.labels.file)} compares them",
        )


def _called_at(evidence: Evidence, pair: _Pair) -> int | None:
    """Return the line that shuffles labels: of a function that shuffles both, the last of its two calls."""
    source, line = evidence.source(pair.labels.file), pair.labels.line
    if source is None or (pair.inputs.file, pair.inputs.line) != (pair.labels.file, line):
        return line
    around = [node for node in walk(source.tree) if isinstance(node, Function) and covers(node, line)]
    inner = max(around, key=lambda node: node.lineno).name if around else ""
    lines = sorted(call.lineno for call in calls(source.tree, inner))
    return lines[-1] if len(lines) == 2 else line


def _find_pairs(flow: OperationGraph) -> Iterator[_Pair]:
    shuffled = [(item, order) for item in flow.all if (order := _order_of(flow, item)) is not None]
    num_uses = {order.index: 0 for _, order in shuffled}
    for _, order in shuffled:
        num_uses[order.index] += 1
    for loss in flow.all:
        if loss.kind not in NLL or len(loss.ins) < 2 or not loss.ins[0].has_grad:
            continue
        labels = flow.maker(loss.ins[1])
        for item, order in shuffled:
            if item is not labels or num_uses[order.index] > 1 or len(flow.users(order)) > 1:
                continue
            inputs = _inputs_of(flow, shuffled, loss, order)
            if inputs is None or num_uses[inputs[1].index] > 1 or len(flow.users(inputs[1])) > 1:
                continue
            if _is_replaced(flow, inputs[0], item) or _is_mixup(flow, inputs[0], item, loss):
                yield _Pair(inputs[0], item, loss)


def _order_of(flow: OperationGraph, item: Operation) -> Operation | None:
    """Return the permutation that an operation shuffles all rows of a tensor with."""
    if item.kind not in ("index", "index_select") or len(item.ins) != 2 or not item.outs:
        return None
    order, rows = flow.maker(item.ins[1]), item.ins[0].shape[:1]
    if order is None or order.kind != "randperm" or item.outs[0].shape != item.ins[0].shape:
        return None
    is_whole = bool(order.outs) and order.outs[0].shape == item.ins[1].shape == rows
    return order if is_whole and rows[0] >= _LEAST_ROWS else None


def _inputs_of(
    flow: OperationGraph, shuffled: list[tuple[Operation, Operation]], loss: Operation, order: Operation
) -> tuple[Operation, Operation] | None:
    """Return the only shuffled numbers that scores depend on; None if the labels' order is in them too."""
    before = {item.index for item in flow.before(loss.ins[0])}
    found = [(item, other) for item, other in shuffled if item.index in before]
    rows = loss.ins[1].shape[:1]
    if len(found) != 1 or order.index in before:
        return None
    item, other = found[0]
    is_number = item.outs[0].dtype.startswith(("float", "bfloat"))
    is_first = not item.ins[0].has_grad and item.ins[0].shape[:1] == rows and item.step == loss.step
    return (item, other) if is_number and is_first else None


def _is_replaced(flow: OperationGraph, inputs: Operation, labels: Operation) -> bool:
    """Whether inputs and labels are used in this new order alone."""
    return all(
        [user.index for user in _users_of_first(flow, item)] == [item.index] for item in (inputs, labels)
    )


def _users_of_first(flow: OperationGraph, item: Operation) -> list[Operation]:
    maker = flow.maker(item.ins[0])
    users = [] if maker is None else flow.users(maker)
    return [user for user in users if user.step == item.step]


def _is_mixup(flow: OperationGraph, inputs: Operation, labels: Operation, loss: Operation) -> bool:
    """Whether inputs are mixed with those in order by the factor by which their two losses are mixed."""
    first = flow.maker(inputs.ins[0])
    logits = _logits_of(flow, loss)
    others = [
        item for item in flow.all if item.kind in NLL and item.ins[1].producer == labels.ins[0].producer
    ]
    for other in others:
        if first is None or logits is None or _logits_of(flow, other) != logits:
            continue
        given, scored = _factors(flow, first, inputs), _factors(flow, other, loss)
        if any(not one.isdisjoint(two) for one, two in zip(given, scored, strict=True)):
            return True
    return False


def _logits_of(flow: OperationGraph, loss: Operation) -> int | None:
    """Return what made the scores of a cross-entropy."""
    maker = flow.maker(loss.ins[0])
    is_softmax = maker is not None and maker.kind == "_log_softmax"
    return maker.ins[0].producer if maker is not None and is_softmax else None


def _factors(flow: OperationGraph, one: Operation, other: Operation) -> tuple[set[str], set[str]]:
    """Return what two results are multiplied by before they are added to each other."""
    found: tuple[set[str], set[str]] = (set(), set())
    for first in _products(flow, one):
        for second in _products(flow, other):
            if any(item in flow.users(second) and item.kind == "add" for item in flow.users(first)):
                found[0].add(_factor(first, one))
                found[1].add(_factor(second, other))
    return found


def _products(flow: OperationGraph, item: Operation) -> list[Operation]:
    return [user for user in flow.users(item) if user.kind == "mul" and user.step == item.step]


def _factor(product: Operation, item: Operation) -> str:
    """Return a number, or which operation made it."""
    if len(product.ins) == 1:
        return str(number_of(product))
    return next((f"made by {given.producer}" for given in product.ins if given.producer != item.index), "")
