"""Terms of a loss: what is added up, with which factor, and over which axes it is summed or averaged.

Owns walking back through sums. What the terms mean is left to the rules.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from truestep.rules.analysis.flow import OperationGraph, number_of
from truestep.watch import Operation
from truestep.watch.evidence.operation import In

REDUCTIONS = frozenset(
    f"aten.{name}" for name in ("mean.default", "sum.default", "mean.dim", "sum.dim_IntList")
)
_ADDING = frozenset(f"aten.{name}.Tensor" for name in ("add", "sub", "add_", "sub_"))
_FACTORS = frozenset(f"aten.{name}.Tensor" for name in ("mul", "div", "mul_", "div_"))
_COPIES = frozenset({"aten.clone.default", "aten._to_copy.default", "aten.contiguous.default"})
_ALPHA = re.compile(r"alpha=([-+\d.e]+)")
_MAX_TERMS = 80

Key = tuple[int | None, tuple[int, ...]]


class Term(NamedTuple):
    """What is added, before its factor."""

    given: In
    factor: float
    reduced: tuple[str, ...]
    """The sums and averages that it goes through, the last one first."""

    @property
    def key(self) -> Key:
        """The operation that made it, and its shape: parts of one tensor are alike."""
        return key_of(self.given)


def key_of(given: In) -> Key:
    """Return the operation that made a tensor, and its shape."""
    return given.producer, tuple(given.shape)


def sums_of_terms(flow: OperationGraph, whole: set[Key]) -> Iterator[tuple[Operation, list[Term]]]:
    """Yield sums that are no part of a larger one, with their terms. What is `whole` is not taken apart."""
    for item in flow.all:
        parts = _parts(item)
        if not parts or not any(given.has_grad for given, _ in parts):
            continue
        if not any(_parts(user) for user in flow.users(item)):
            terms: list[Term] = []
            _expand(flow, item, 1.0, (), whole=whole, terms=terms)
            yield item, terms


def _expand(  # limits: private to this file
    flow: OperationGraph,
    item: Operation,
    factor: float,
    reduced: tuple[str, ...],
    *,
    whole: set[Key],
    terms: list[Term],
) -> None:
    if item.name in REDUCTIONS:
        reduced = (*reduced, f"{item.name} {item.scalars}")
    for given, own in _parts(item):
        maker = flow.maker(given)
        is_sum = maker is not None and key_of(given) not in whole and bool(_parts(maker))
        if maker is None or not is_sum or len(terms) >= _MAX_TERMS:
            terms.append(Term(given, factor * own, reduced))
        else:
            _expand(flow, maker, factor * own, reduced, whole=whole, terms=terms)


def _parts(item: Operation) -> list[tuple[In, float]]:
    """Return what an operation adds up, with factors; nothing if it does something else."""
    ins, name = item.ins, item.name
    if not ins or not any(given.has_grad for given in ins):
        return []
    if name in _ADDING:
        found = _ALPHA.search(item.scalars)
        second = (float(found[1]) if found else 1.0) * (-1.0 if "sub" in name else 1.0)
        return list(zip(ins, (1.0, second), strict=False))
    if name in ("aten.neg.default", "aten.rsub.Scalar"):
        return [(ins[0], -1.0)]
    if name in _FACTORS and len(ins) == 1:
        number = number_of(item)
        return [(ins[0], 1 / number if "div" in name else number)] if number else []
    return [(ins[0], 1.0)] if name in REDUCTIONS | _COPIES else []
