"""What evaluations gave, taken apart: single numbers by name, and matrices.

Owns the shapes that a metric's value may have. A number, a list, a table, or any of them by name.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from truestep.report.curve import Curve
from truestep.report.runs import Facts

_MAX_LIST = 1000
"""A list longer than this is no list of classes: it is left to the record."""

Matrix = list[list[float]]


def evaluation_curves(facts: Facts) -> dict[str, Curve]:
    """Return every number that evaluations gave, by name and by steps done."""
    curves: dict[str, Curve] = {}
    for item in facts.evaluations:
        for name, value in numbers(item.name, item.value):
            curves.setdefault(name, Curve()).add(item.cursor, value)
    return curves


def evaluation_matrices(facts: Facts) -> Iterator[tuple[str, int, Matrix]]:
    """Yield every matrix that evaluations gave, such as confusion matrices: name, steps done, rows."""
    for item in facts.evaluations:
        for name, matrix in tables(item.name, item.value):
            yield name, item.cursor, matrix


def numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """Yield each number in a value under a name of its own; those of matrices are left out."""
    if isinstance(value, bool | int | float) or value in ("nan", "inf", "-inf"):
        with contextlib.suppress(OverflowError):  # a whole number that no float can hold stays in the record
            yield name, float(value)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from numbers(f"{name}/{key}", item)
    elif isinstance(value, list) and len(value) <= _MAX_LIST and _as_matrix(value) is None:
        for index, item in enumerate(value):
            yield from numbers(f"{name}/{index}", item)


def tables(name: str, value: Any) -> Iterator[tuple[str, Matrix]]:
    """Yield each matrix in a value under a name of its own."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from tables(f"{name}/{key}", item)
    elif (matrix := _as_matrix(value)) is not None:
        yield name, matrix


def _as_matrix(value: Any) -> Matrix | None:
    """The value itself if it is a table of numbers with rows of one length."""
    if not (isinstance(value, list) and value and all(isinstance(row, list) and row for row in value)):
        return None
    is_even = len({len(row) for row in value}) == 1
    is_plain = all(isinstance(item, int | float) for row in value for item in row)
    return value if is_even and is_plain else None


def storable(value: object) -> str:
    """Return text that a file can hold: a lone surrogate, which JSON lets pass, is written by its number."""
    return str(value).encode("utf-8", "backslashreplace").decode()
