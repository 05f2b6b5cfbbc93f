"""Formulas over recorded operations: a rule writes a formula, and `find` yields where it is computed.

Owns matching. Copies between two operations do not count, and products and sums commute. What a formula
means for training is left to the rules.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from truestep.rules.kit.flow import OperationGraph, number_of
from truestep.watch import Operation
from truestep.watch.evidence.operation import In

COPIES = frozenset({"clone", "_to_copy", "contiguous", "expand", "view"})
_COMMUTING = frozenset({"add", "mul"})
_MAX_SAME, _MAX_TERMS = 200, 64


class Found(NamedTuple):
    """An operation that computes a formula, and what its variables and named parts are."""

    place: Operation
    tensors: dict[str, In]
    """Variables, as operations were given them."""
    parts: dict[str, Operation]
    """Operations that have a name."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Term:
    """A part of a formula: an operation of one of these kinds, or any tensor if there is none.

    Without `args` the operation may be given anything. `number` is the last number that it is given.
    """

    kinds: tuple[str, ...] = ()
    args: tuple["Term", ...] = ()
    label: str = ""
    number: float | None = None
    has_grad: bool | None = None

    def named(self, label: str) -> "Term":
        """Return the same, whose operation is among the parts that are found."""
        return replace(self, label=label)

    def __add__(self, other: "Term") -> "Term":
        return op("add", self, other)

    def __sub__(self, other: "Term") -> "Term":
        return op("sub", self, other)

    def __mul__(self, other: "Term") -> "Term":
        return op("mul", self, other)


def op(kinds: str, *args: Term, number: float | None = None) -> Term:
    """Return an operation of one of these kinds, divided by blanks."""
    return Term(kinds=tuple(kinds.split()), args=args, number=number)


def trained(label: str) -> Term:
    """Return a variable through which gradients flow back."""
    return Term(label=label, has_grad=True)


def given(label: str) -> Term:
    """Return a variable without gradients."""
    return Term(label=label, has_grad=False)


def find(flow: OperationGraph, formula: Term) -> Iterator[Found]:
    """Yield where a formula is computed, once for each operation."""
    for item in flow.named(*formula.kinds):
        found = next(_in_operation(flow, item, formula, Found(item, {}, {})), None)
        if found is not None:
            yield found


def _in_operation(flow: OperationGraph, item: Operation, term: Term, found: Found) -> Iterator[Found]:
    is_kind = item.kind in term.kinds and len(item.ins) >= len(term.args)
    if not is_kind or (term.number is not None and number_of(item) != term.number):
        return
    if term.label:
        found = found._replace(parts={**found.parts, term.label: item})
    ins = item.ins[: len(term.args)]
    orders = [ins, ins[::-1]] if item.kind in _COMMUTING and len(item.ins) == 2 else [ins]
    for order in orders:
        ways = [found]
        for tensor, arg in zip(order, term.args, strict=True):
            ways = [after for before in ways for after in _in_tensor(flow, tensor, arg, before)]
        yield from ways


def _in_tensor(flow: OperationGraph, tensor: In, term: Term, found: Found) -> Iterator[Found]:
    if term.has_grad is not None and term.has_grad != tensor.has_grad:
        return
    if not term.kinds:
        yield found._replace(tensors={**found.tensors, term.label: tensor})
        return
    maker = flow.maker(tensor)
    while maker is not None and maker.kind in COPIES.difference(term.kinds):
        maker = flow.maker(maker.ins[0])
    if maker is not None:
        yield from _in_operation(flow, maker, term, found)


def is_same(flow: OperationGraph, pair: tuple[In, In]) -> bool:
    """Whether two tensors are one, or are computed from the same ones by the same operations in one step."""
    queue, num_seen = [pair], 0
    while queue and num_seen < _MAX_SAME:
        one, other = queue.pop()
        num_seen += 1
        first, second = flow.maker(one), flow.maker(other)
        if one.shape != other.shape:
            return False
        if (one.producer, one.memory) == (other.producer, other.memory):
            if one.producer is None and not one.memory:
                return False
        elif first is None or second is None or not _is_alike(first, second):
            return False
        else:
            queue += zip(first.ins, second.ins, strict=True)
    return not queue


def _is_alike(one: Operation, other: Operation) -> bool:
    # Optimizers change weights without an operation that is recorded: between two steps nothing is the same.
    is_alike = (one.step, one.name, one.scalars) == (other.step, other.name, other.scalars)
    return is_alike and 0 < len(one.ins) == len(other.ins) and not one.is_random and not other.is_random


def terms(flow: OperationGraph, item: Operation, *, factor: float = 1.0) -> Iterator[tuple[float, Operation]]:
    """Yield what makes the terms of a sum, with their factors: `a - 2 * (b + 1)` gives 1 and a, -2 and b.

    An operation that is no sum is its own term.
    """
    queue = [(factor, item)]
    for _ in range(_MAX_TERMS):
        if not queue:
            return
        factor, item = queue.pop(0)
        parts = _parts(item)
        if not parts:
            yield factor, item
        for weight, part in parts:
            maker = flow.maker(part)
            if maker is not None:
                queue.append((factor * weight, maker))


def _parts(item: Operation) -> list[tuple[float, In]]:
    """Return what an operation adds up, with factors; nothing if it is no sum."""
    number = number_of(item) if len(item.ins) == 1 else None
    alpha = item.options.get("alpha", 1)
    weights: dict[str, tuple[float, ...]] = {"add": (1, alpha), "sub": (1, -alpha), "rsub": (-1, 1)}
    if number and item.kind in ("mul", "div"):
        return [(number if item.kind == "mul" else 1 / number, item.ins[0])]
    single = (-1,) if item.kind == "neg" else (1,) if item.kind in COPIES else ()
    return list(zip(weights.get(item.kind, single), item.ins, strict=False))
