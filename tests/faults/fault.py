"""What can go wrong with one operation on files."""

import errno
import itertools
import os
from dataclasses import dataclass
from typing import Literal, TypeAlias

How: TypeAlias = Literal["refuse", "refuse after", "full", "gone", "short", "short, full"]
"""What happens to an operation, or from it on:

refuse: an error and no effect; refuse after: the effect and an error; full: what needs room fails from there
on; gone: everything fails from there on; short: a write takes half; short, full: both.
"""
HOWS: tuple[How, ...] = ("refuse", "refuse after", "full", "gone", "short", "short, full")


@dataclass(frozen=True)
class Fault:
    """What goes wrong at the operation of a number."""

    at: int
    how: How
    number: int = errno.EIO

    def error(self, path: str) -> OSError:
        number = errno.ENOSPC if self.how in ("full", "short, full") else self.number
        return OSError(number, os.strerror(number), path)


def all_faults(operations: list[str]) -> list[Fault]:
    """Return each fault that can happen at each of the operations."""
    numbers = itertools.cycle((errno.EIO, errno.ENOSPC, errno.EDQUOT))
    return [
        Fault(index, how, next(numbers) if how == "refuse" else errno.EIO)
        for index, operation in enumerate(operations)
        for how in HOWS
        if operation.startswith("write") or not how.startswith("short")
    ]


def some_faults(operations: list[str]) -> list[Fault]:
    """Return one fault for each of the operations; the kinds take turns among operations of one verb."""
    turns: dict[str, itertools.cycle[How]] = {}
    found = []
    for index, operation in enumerate(operations):
        verb = operation.split()[0]
        hows = HOWS if verb == "write" else HOWS[:4]
        found.append(Fault(index, next(turns.setdefault(verb, itertools.cycle(hows)))))
    return found
