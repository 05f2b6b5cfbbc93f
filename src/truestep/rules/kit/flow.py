"""Dataflow: which operation made what another one is given, and who uses it.

Owns walking over operations. What they mean for training is left to the rules.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from math import prod
from operator import attrgetter

from truestep.watch import Operation
from truestep.watch.evidence.operation import In

SCALING = frozenset({"clone", "_to_copy", "contiguous", "clamp", "clamp_min", "clamp_max", "clip"}) | {
    *("mul", "div", "add", "sub", "nan_to_num")
}
"""What changes scores by a factor or a little at most, if only one tensor of several values goes in."""

PICKING = frozenset({"index", "index_select", "masked_select"})
"""What takes some of the values of its first input, as they are."""

LINEAR = frozenset({"addmm", "mm", "bmm", "baddbmm", "convolution", "linear", "matmul"})
"""What gives scores of any size."""

SOFTMAX = frozenset({"_softmax", "_safe_softmax"})
NLL = frozenset({"nll_loss_forward", "nll_loss2d_forward"})
BINARY = frozenset({"binary_cross_entropy", "binary_cross_entropy_with_logits"})
SQUARED = frozenset({"mse_loss", "smooth_l1_loss", "huber_loss"})
ERRORS = SQUARED | BINARY | {"l1_loss"}
"""Losses that compare value by value."""

REDUCTIONS = frozenset({"mean", "sum"})
SHAPING = frozenset({"view", "_unsafe_view", "reshape", "unsqueeze"})
COMPARISONS = frozenset({"gt", "lt", "ge", "le", "eq", "ne"})
CUTTING = COMPARISONS | {
    *("argmax", "argmin", "argsort", "multinomial", "bernoulli", "round", "sign", "sgn", "floor", "ceil"),
    *("trunc", "heaviside", "bucketize", "searchsorted", "nonzero"),
}
"""What has no gradient, or one of zero."""


class OperationGraph:
    """Operations of the forward passes and of what is computed from them."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self.all = [item for item in operations if item.phase not in ("backward", "optimizer")]
        self._by_index = {item.index: item for item in self.all}
        self._users: dict[int, list[Operation]] = defaultdict(list)
        for item in self.all:
            for producer in {given.producer for given in item.ins}:
                if producer is not None:
                    self._users[producer].append(item)

    def at(self, index: int) -> Operation | None:
        """Return the operation with that index."""
        return self._by_index.get(index)

    def named(self, *names: str) -> Iterator[Operation]:
        """Return those of one of these kinds."""
        return (item for item in self.all if item.kind in names)

    def has(self, *names: str) -> bool:
        """Whether there is one of these kinds."""
        return any(True for _ in self.named(*names))

    def maker(self, given: In) -> Operation | None:
        """Return what made a tensor; views do not count."""
        return None if given.producer is None else self._by_index.get(given.producer)

    def users(self, operation: Operation) -> list[Operation]:
        """Return what is given its result."""
        return self._users.get(operation.index, [])

    def source(self, given: In, passing: frozenset[str] = SCALING | PICKING) -> Operation | None:
        """Return what made a tensor, before copies, scaling, clamping and the choice of some rows."""
        maker = self.maker(given)
        while maker is not None and maker.kind in passing:
            is_picking = maker.kind in PICKING
            large = [*maker.ins[:1]] if is_picking else [item for item in maker.ins if prod(item.shape) > 1]
            if len(large) != 1:
                break
            before = self.maker(large[0])
            if before is None:
                return None
            maker = before
        return maker

    def is_scored(self, given: In, *, is_trained: bool | None = None) -> bool:
        """Whether a tensor depends on weights, or is computed from a model's output in an evaluation.

        If it is said whether it is trained: whether it is one of the two.
        """
        if given.has_grad or is_trained:
            return given.has_grad and is_trained is not False
        return any(item.phase == "forward" for item in self.before(given, limit=400))

    def before(
        self, given: In, needs: Callable[[Operation], Iterable[In]] = attrgetter("ins"), *, limit: int = 4000
    ) -> list[Operation]:
        """Return all that a tensor was computed from; `needs` gives what counts of what went in."""
        seen: dict[int, Operation] = {}
        queue = [self.maker(given)]
        while queue and len(seen) < limit:
            item = queue.pop()
            if item is not None and item.index not in seen:
                seen[item.index] = item
                queue += map(self.maker, needs(item))
        return list(seen.values())

    def follow(self, operation: Operation, limit: int = 400) -> Iterator[Operation]:
        """Return all that depends on it, nearest first."""
        seen, queue = {operation.index}, [operation]
        while queue and len(seen) < limit:
            for user in self.users(queue.pop(0)):
                if user.index not in seen:
                    seen.add(user.index)
                    queue.append(user)
                    yield user


def axis_of(operation: Operation) -> int | None:
    """Return the axis that a softmax is over, counted from 0."""
    axes = axes_of(operation)
    return axes.pop() if len(axes) == 1 else None


def axes_of(operation: Operation) -> set[int]:
    """Return the axes that an operation was given, counted from 0."""
    given = operation.given[1] if len(operation.given) > 1 and operation.ins else None
    rank = len(operation.ins[0].shape) if operation.ins else 0
    axes = given if isinstance(given, list) else [given]
    return {axis % rank for axis in axes if isinstance(axis, int) and rank}


def is_total(operation: Operation) -> bool:
    """Whether it makes one number of all values: their sum or mean."""
    return operation.kind in REDUCTIONS and bool(operation.outs) and not operation.outs[0].shape


def number_of(operation: Operation) -> float | None:
    """Return the last number that an operation was given, as a factor is; None if it is none."""
    last = operation.given[-1] if operation.given and not operation.options else None
    return float(last) if isinstance(last, int | float) and not isinstance(last, bool) else None


def size_of(operation: Operation) -> int:
    """Return the length of the axis that a softmax is over; 0 if not known."""
    axis = axis_of(operation)
    return 0 if axis is None else operation.ins[0].shape[axis]


def place_of(operation: Operation, near: str | None = None) -> str:
    """Return where an operation was called, in words; without the file if it is the one that is near."""
    if operation.line is None:
        return "in library code"
    inside = f" in module {operation.module}" if operation.module else ""
    file = "" if operation.file == near else f" of {operation.file}"
    return f"at line {operation.line}{file}{inside}"
