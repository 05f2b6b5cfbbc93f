"""Labels are moved along the batch, and compared with the outputs of other samples.

## What it finds
Labels that are rolled, flipped or shuffled on their way into the loss while the inputs keep their order, or
outputs that are while the labels keep theirs. The rule follows the operations of the first steps and of
evaluations. Targets of sequences that are moved to the next token are not reported.

## Why it matters
A label that belongs to another sample is noise. Training runs, accuracy suffers, and no shape is wrong.

## How to fix
Draw one permutation and index both with it: `order = torch.randperm(len(x))`, then `x[order]` and `y[order]`.
"""

from collections.abc import Iterator
from math import prod

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.flow import BINARY, NLL, SQUARED, OperationGraph, place_of
from truestep.rules.kit.loaders import find_loaders
from truestep.watch import Operation
from truestep.watch.evidence.facts.loading import LoaderUsed
from truestep.watch.evidence.facts.passes import BackwardPass, ClassesScored
from truestep.watch.evidence.operation import In

RULE = Meta(
    code="DATA14",
    severity="error",
    needs=(BackwardPass,),
    fix="Change the order of inputs and labels together, or of neither.",
)
_REORDERING = frozenset(["index", "index_select", "index_put", "gather", "take", "flip", "roll", "scatter"])
_LOSSES = NLL | SQUARED | BINARY
_ROLLING = ("roll", "flip")
_LEAST_STEPS, _LEAST_ROWS = 2, 2
_MANY = 0.5


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find labels that are moved along the batch right before a loss whose scores are in order."""
    flow = evidence.flow
    batches = _shuffled_batches(evidence)
    shifted = _shifted_by_one(evidence)
    losses = [item for item in flow.all if item.kind in _LOSSES and any(map(flow.is_scored, item.ins[:2]))]
    moved = [(loss, item) for loss in losses if (item := _moved_by(flow, loss)) is not None]
    by_place: dict[tuple[str | None, int | None], dict[int, tuple[Operation, Operation]]] = {}
    for loss, item in moved:
        others = (one for one in losses if one is not loss and _are_of_one_pass(flow, one, loss))
        if any(_moved_by(flow, one) is None and one.ins[1].shape == loss.ins[1].shape for one in others):
            return  # mixed samples, or an attack: labels in order are scored, too
        if loss.index not in shifted and not _is_in_doubt(flow, loss, item, batches):
            of_place = by_place.setdefault((item.file, item.line), {})
            of_place.setdefault(loss.index, (loss, item))
    for pairs in by_place.values():
        loss, item = pairs[min(pairs)]
        is_enough = (
            len(pairs) >= _LEAST_STEPS or not loss.ins[0].has_grad
        )  # a whole set may be evaluated once
        if is_enough and item.line is not None:
            yield Finding.at(
                item,
                "labels are compared with the outputs of other samples",
                count=len(pairs),
                evidence=f"in {len(pairs)} batch{'es' * (len(pairs) > 1)}, {item.kind} moves "
                f"{'outputs' if item.ins[0].has_grad else 'labels'} of shape {tuple(item.ins[0].shape)} "
                "along the batch, and nothing moves the others; the loss "
                f"{place_of(loss, item.file)} compares them",
            )


def _shuffled_batches(evidence: Evidence) -> frozenset[int]:
    """Return the sizes of batches whose samples are in random order."""
    random = {loader.number for loader in find_loaders(evidence) if loader.facts.is_random}
    used = (moment.facts for moment in evidence.of(LoaderUsed))
    return frozenset(item.batch_size for item in used if item.loader in random and item.batch_size)


def _shifted_by_one(evidence: Evidence) -> frozenset[int]:
    """Return the losses whose targets are the tokens that come next: as they are moved, they are right."""
    scored = (moment.facts for moment in evidence.of(ClassesScored))
    return frozenset(
        item.operation_index for item in scored if len(item.shifts) > 1 and item.shifts[1].share > _MANY
    )


def _are_of_one_pass(flow: OperationGraph, one: Operation, other: Operation) -> bool:
    """Whether two losses are of one step, and of one pass in an evaluation, where all are of one step."""
    if one.step != other.step or one.ins[0].has_grad != other.ins[0].has_grad:
        return False
    before = {item.index for item in flow.before(one.ins[0])}
    return one.ins[0].has_grad or any(item.index in before for item in flow.before(other.ins[0]))


def _moved_by(flow: OperationGraph, loss: Operation) -> Operation | None:
    """Return what puts labels of a loss, or outputs, in another order, if it is certain that it does."""
    found = [item for given in loss.ins[:2] if (item := _move(flow, loss, given)) is not None]
    return found[0] if len(found) == 1 else None


def _move(flow: OperationGraph, loss: Operation, given: In) -> Operation | None:
    maker = flow.source(given)
    if maker is None or not maker.ins or not maker.outs:
        return None
    is_models = maker.phase == "forward" and maker.kind in _ROLLING  # which computes its loss itself
    if not is_models and maker.phase not in ("other", "data"):
        return None
    if given.has_grad and maker.kind not in _ROLLING:
        return None
    shape = maker.ins[0].shape
    is_same = shape == maker.outs[0].shape and maker.step == loss.step
    return maker if is_same and shape[:1] >= (_LEAST_ROWS,) and _is_moving(flow, maker) else None


def _is_moving(flow: OperationGraph, item: Operation) -> bool:
    """Whether an operation moves the rows of its input."""
    if item.kind in _ROLLING:
        axes = item.given[-1] if item.given and isinstance(item.given[-1], list) else []
        return 0 in axes or -len(item.ins[0].shape) in axes
    if item.kind not in ("index", "index_select") or len(item.ins) != 2:
        return False
    order = flow.maker(item.ins[1])
    return order is not None and order.kind == "randperm" and order.step == item.step


def _is_reordering(item: Operation) -> bool:
    return item.kind in _REORDERING and not item.is_in_place


def _is_in_doubt(flow: OperationGraph, loss: Operation, item: Operation, batches: frozenset[int]) -> bool:
    """Whether scores are in another order too, or are computed from what the labels are made of.

    A model may be asked for its own input one place on, but not for another sample of a shuffled batch.
    """
    first, second = loss.ins[:2]
    is_output = item.ins[0].has_grad
    other = first if not is_output or first.producer != item.index else second
    before = [one for one in flow.before(other) if one.step == loss.step]
    if is_output:
        return any(map(_is_reordering, before))
    source = item.ins[0]
    is_of_batch = len(source.shape) > 1 and source.shape[0] in batches
    chosen = {_choice(one) for one in flow.before(source)}
    return any(
        (_is_reordering(one) and _choice(one) not in chosen)
        or (not is_of_batch and any(_may_be(given, source) for given in one.ins))
        for one in before
    )


def _choice(item: Operation) -> tuple[str, tuple[tuple[int | None, tuple[int, ...]], ...]]:
    """Return what tells one choice of rows from another: the operation, and the rows that are asked for."""
    return item.name, tuple((given.producer, given.shape) for given in item.ins[1:])


def _may_be(given: In, source: In) -> bool:
    """Whether two inputs may be one tensor: of what no operation has made, if size and memory are equal."""
    if source.producer is not None:
        return given.producer == source.producer
    is_like = given.producer is None and not given.has_grad and prod(given.shape) == prod(source.shape)
    return is_like and (given.memory == source.memory or not given.memory or not source.memory)
