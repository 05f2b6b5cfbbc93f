"""What evaluations gave, taken apart into single numbers by name.

Owns the shapes that a metric's value may have: a number, a list, or any of them by name.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from truestep.report.curve import Curve
from truestep.report.runs import Facts

_MAX_LIST = 1000
"""A list longer than this is no list of classes: it is left to the record."""


def evaluation_curves(facts: Facts) -> dict[str, Curve]:
    """Return every number that evaluations gave, by name and by steps done."""
    curves: dict[str, Curve] = {}
    for item in facts.evaluations:
        for name, value in numbers(item.name, item.value):
            curves.setdefault(name, Curve()).add(item.cursor, value)
    return curves


def numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """Yield each number in a value under a name of its own; those of tables are left out."""
    if isinstance(value, bool | int | float) or value in ("nan", "inf", "-inf"):
        with contextlib.suppress(OverflowError):  # a whole number that no float can hold stays in the record
            yield name, float(value)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from numbers(f"{name}/{key}", item)
    elif isinstance(value, list) and len(value) <= _MAX_LIST and not _is_table(value):
        for index, item in enumerate(value):
            yield from numbers(f"{name}/{index}", item)


def _is_table(value: list[Any]) -> bool:
    """Whether it is a table of numbers, such as a confusion matrix, and no list of classes."""
    rows = [row for row in value if isinstance(row, list) and row]
    is_even = len(rows) == len(value) > 0 and len({len(row) for row in rows}) == 1
    return is_even and all(isinstance(item, int | float) for row in rows for item in row)


def storable(value: object) -> str:
    """Return text that a file can hold: a lone surrogate, which JSON lets pass, is written by its number."""
    return str(value).encode("utf-8", "backslashreplace").decode()
