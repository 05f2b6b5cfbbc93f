"""What happened in groups: by line, by model, by optimizer. Judges nothing."""

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any, TypeVar

T = TypeVar("T")
_LEAST_STEPS = 2


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


def lasting(items: Iterable[T]) -> Iterator[list[T]]:
    """Yield what happened at one line in at least two steps: once may be chance."""
    return (found for found in by_line(items).values() if len(steps_of(found)) >= _LEAST_STEPS)


def steps_of(items: Iterable[Any]) -> set[int]:
    """Return the steps of moments or operations."""
    return {item.step for item in items}
