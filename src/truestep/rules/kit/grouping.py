"""What happened in groups: by line, by model, by optimizer. Judges nothing."""

from collections.abc import Iterable
from operator import attrgetter
from typing import Any, TypeVar

T = TypeVar("T")


def grouped(items: Iterable[T], *attributes: str) -> dict[Any, list[T]]:
    """Return what agrees in attributes such as `facts.model`, in the order in which each first came."""
    found: dict[Any, list[T]] = {}
    key = attrgetter(*attributes)
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def by_line(items: Iterable[T]) -> dict[Any, list[T]]:
    """Return moments or operations by file and line."""
    return grouped(items, "file", "line")
