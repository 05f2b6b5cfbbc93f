"""A term of the loss has no gradient because of argmax, rounding or a comparison.

## What it finds
A number that is added to the loss and depends on the model's output only through an operation without a
gradient: argmax, rounding, sign, a comparison, a conversion to integers. Straight-through estimators, masks
and weights that multiply, and class numbers used as targets are not reported.

## Why it matters
The term is part of the reported loss and changes nothing in the model. Its gradient is zero or missing, and
no error is raised because the other terms still have theirs.

## How to fix
Write the term with probabilities: softmax instead of argmax, sigmoid instead of a threshold, or a
straight-through estimator.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.flow import CUTTING, ERRORS, SCALING, OperationGraph, is_total, place_of
from truestep.watch import Operation
from truestep.watch.evidence.facts.passes import BackwardPass
from truestep.watch.evidence.operation import In

RULE = Meta(
    code="LOSS06",
    severity="warning",
    needs=(BackwardPass,),
    fix="Compute this term from probabilities instead of hard decisions, so that it has a gradient.",
)
_MAX_WALK = 200
_SEEN_THROUGH = frozenset({"detach", "view", "_unsafe_view", "squeeze"})
_OWN = ("forward", "other")


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find sums of a term that has a gradient and one that has lost it."""
    flow = evidence.flow
    living = _Living(flow)
    yield from _without_gradient(flow)
    for operation in flow.named("add", "sub"):
        if len(operation.ins) != 2 or operation.phase == "setup" or not _is_loss(flow, operation):
            continue
        for kept, lost in (operation.ins, operation.ins[::-1]):
            if not living.has(kept) or living.has(lost):
                continue
            cuts = living.cuts(lost, but=kept.producer)
            if cuts:
                first = cuts[0]
                more = "".join(f", and {item.name} {place_of(item, first.file)}" for item in cuts[1:3])
                yield Finding.at(
                    first,
                    "this operation has no gradient, so a term of the loss has none",
                    evidence=f"{first.name} of shape {tuple(first.ins[0].shape)}{more}; the term is added to "
                    f"the loss {place_of(operation, first.file)}",
                )


def _without_gradient(flow: OperationGraph) -> Iterator[Finding]:
    """Find errors of what a model makes of an output that has a gradient, if it makes that under no_grad."""
    lines: dict[tuple[str | None, int | None], list[tuple[Operation, Operation]]] = {}
    for total in flow.named("add"):
        if len(total.ins) != 2 or any(given.shape for given in total.ins):
            continue
        for kept, lost in (total.ins, total.ins[::-1]):
            error = _error_of(flow, lost) if kept.has_grad and not lost.has_grad else None
            if error is None or any(given.has_grad for given in error.ins):
                continue
            entered = _entered(flow, error)
            if entered is not None:
                lines.setdefault((error.file, error.line), []).append((entered, error))
    for found in lines.values():
        entered, error = found[0]
        yield Finding.at(
            error,
            "this term of the loss has no gradient: what it compares was computed without, or detached",
            count=len(found),
            evidence=f"{entered.name} {place_of(entered, error.file)} is given an output that has a "
            "gradient, and gives one that has none; the error is added to the loss",
            fix="Detach only the target of this term, and compute what it trains outside of no_grad().",
        )


def _error_of(flow: OperationGraph, given: In) -> Operation | None:
    """Return the loss that a number is, but for a factor."""
    made = flow.maker(given)
    while made is not None and made.kind in SCALING and len(made.ins) == 1:
        made = flow.maker(made.ins[0])
    return made if made is not None and made.kind in ERRORS and len(made.ins) == 2 else None


def _entered(flow: OperationGraph, error: Operation) -> Operation | None:
    """Return where what a model computes with a gradient loses it, on its way into an error."""
    before = flow.before(error.ins[0], limit=_MAX_WALK) + flow.before(error.ins[1], limit=_MAX_WALK)
    own = [item for item in before if item.phase in _OWN and item.step == error.step]
    for item in sorted(own, key=lambda item: item.index):
        makers = [flow.maker(given) for given in item.ins if given.has_grad]
        is_lost = not any(given.has_grad for given in _uses(flow, item))
        # Weights have a gradient in any pass; what was computed from them has one only with a graph.
        if is_lost and any(
            one is not None and one.phase != "setup" and one.step == item.step for one in makers
        ):
            return item
    return None


def _uses(flow: OperationGraph, item: Operation) -> list[In]:
    """Return what is made of a result: what is made of its views is listed too, and derivatives detach it."""
    users = [user for user in flow.users(item) if user.kind not in _SEEN_THROUGH]
    return [given for user in users for given in user.ins if given.producer == item.index]


def _is_loss(flow: OperationGraph, operation: Operation) -> bool:
    """Whether two numbers are added, or one for each sample that are averaged at once."""
    first, second = (given.shape for given in operation.ins)
    if {first, second} <= {(), (1,)}:
        return True
    is_sum = first == second and operation.kind == "add"
    return is_sum and any(map(is_total, flow.users(operation)))


def _is_cutting(operation: Operation) -> bool:
    """Whether its result is a step function of what it is given: whole numbers among them."""
    is_cast = operation.kind == "_to_copy" and bool(operation.outs)
    return operation.kind in CUTTING or (is_cast and "int" in str(operation.outs[0].dtype))


class _Living:
    """Which tensors have a gradient that is not zero by construction."""

    def __init__(self, flow: OperationGraph) -> None:
        self._flow = flow
        self._known: dict[int, bool] = {}
        for operation in flow.all:
            is_leaf = not any(given.has_grad for given in operation.ins)  # made now, a parameter later
            lives = is_leaf or any(map(self.has, operation.ins))
            self._known[operation.index] = not _is_cutting(operation) and lives

    def has(self, given: In) -> bool:
        return given.has_grad and (given.producer is None or self._known.get(given.producer, True))

    def cuts(self, lost: In, *, but: int | None) -> list[Operation]:
        """Return where a tensor lost its gradient; nothing if it also follows what it is added to."""
        found: list[Operation] = []
        seen: set[int] = set()
        queue = [self._flow.maker(lost)]
        while queue and len(seen) < _MAX_WALK:
            operation = queue.pop(0)
            if operation is None or operation.index in seen:
                continue
            if operation.index == but:  # a straight-through estimator
                return []
            seen.add(operation.index)
            if _is_cutting(operation) and any(map(self.has, operation.ins)):
                found.append(operation)
                continue
            if not any(map(self.has, operation.ins)):  # otherwise it was detached on purpose
                queue += [self._flow.maker(given) for given in operation.ins]
        return sorted(found, key=lambda item: item.index)
