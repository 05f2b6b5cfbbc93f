"""Formulas over recorded operations: where they are found, and what their variables are."""

from typing import Any

from truestep.rules.kit.flow import OperationGraph
from truestep.rules.kit.formula import find, given, is_same, op, terms, trained
from truestep.watch import Operation
from truestep.watch.evidence.operation import In, Row, TableReader

WEIGHT, DATA = In("", None, (4,), has_grad=True, memory=1), In("", None, (4,), has_grad=False, memory=2)


class Recorded:
    """Operations as a recorder writes them, one after the other."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._tables = TableReader()

    def add(self, kind: str, *ins: In, numbers: str = "", **more: Any) -> In:
        """Record an operation, and return what it gives."""
        index = len(self.operations)
        self._tables.texts.append(f"aten.{kind}.default")
        place = {"thread": 0, "step": 0, "site": 0, "outer": 0, "phase": 3, "module": 0, **more}
        text = ", ".join([*["T"] * len(ins), *[numbers] * bool(numbers)])
        row = Row(index=index, name=index + 1, scalars=text, ins=list(ins), **place)
        self.operations.append(self._tables.operation(row))
        return In("", index, (4,), any(item.has_grad for item in ins))

    @property
    def flow(self) -> OperationGraph:
        return OperationGraph(self.operations)


def test_a_formula_is_found_whatever_the_order_of_factors_and_the_copies_between() -> None:
    made = Recorded()
    copy = made.add("_to_copy", made.add("exp", WEIGHT))
    made.add("mul", DATA, copy)
    made.add("sub", DATA, copy)
    formula = op("exp", trained("x")).named("rate") * given("n")
    (found,) = find(made.flow, formula)
    assert (found.place.kind, found.parts["rate"].kind) == ("mul", "exp")
    assert (found.tensors["x"], found.tensors["n"]) == (WEIGHT, DATA)
    assert list(find(made.flow, given("n") - op("exp", given("x")))) == []
    assert len(list(find(made.flow, given("n") - op("exp", trained("x"))))) == 1
    assert list(find(made.flow, op("exp", trained("x")) - given("n"))) == [], "a difference has an order"


def test_a_number_is_part_of_a_formula() -> None:
    made = Recorded()
    for number in ("2", "3"):
        made.add("pow", WEIGHT, numbers=number)
    assert [found.place.index for found in find(made.flow, op("pow", trained("x"), number=2))] == [0]


def test_tensors_are_the_same_if_they_are_computed_again_in_one_step() -> None:
    made = Recorded()
    one, other, later = (made.add("exp", made.add("mul", WEIGHT, DATA), step=step) for step in (0, 0, 1))
    assert is_same(made.flow, (one, other))
    assert not is_same(made.flow, (one, later)), "a step in between changes weights"
    assert not is_same(made.flow, (one, made.add("exp", made.add("mul", WEIGHT, WEIGHT))))
    drawn = [made.add("bernoulli", DATA, flags=1) for _ in range(2)]
    assert not is_same(made.flow, (drawn[0], drawn[1]))
    unknown = In("", None, (4,))
    assert not is_same(made.flow, (unknown, unknown)), "nothing says that they are one"


def test_a_sum_has_terms_with_factors() -> None:
    made = Recorded()
    one, two, three = (made.add(kind, WEIGHT) for kind in ("exp", "log", "square"))
    inner = made.add("mul", made.add("sub", two, three), numbers="0.5")
    made.add("rsub", made.add("add", one, inner, numbers="alpha=2"), numbers="1")
    found = {item.kind: factor for factor, item in terms(made.flow, made.operations[-1])}
    assert found == {"exp": -1.0, "log": -1.0, "square": 1.0}
