"""Weak references that nothing of the script's notices.

Owns their class, and what is known of objects by their identity. torch refuses to swap the contents of a
tensor that somebody refers to weakly, as `Module.to` does for some kinds: ours do not count.
"""

import types
import weakref
from typing import Any, Generic, TypeVar

import torch

from truestep.watch.hooks.table import when_removed
from truestep.watch.script.tape import Tape

K = TypeVar("K")
T = TypeVar("T")


class Ref(weakref.ref[T]):
    """A weak reference of ours."""

    __slots__ = ()


class ByIdentity(Generic[K, T]):
    """What is known of objects, as long as they live; calls no `__eq__` or `__hash__` of theirs."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Ref[K], T]] = {}

    def __setitem__(self, key: K, value: T) -> None:
        number, known = id(key), self._known
        known[number] = (Ref(key, lambda _: known.pop(number, None)), value)

    def __getitem__(self, key: K) -> T:
        return self._known[id(key)][1]

    def __contains__(self, key: K) -> bool:
        return id(key) in self._known

    def get(self, key: K) -> T | None:
        """Return what is known of an object, None if nothing is."""
        known = self._known.get(id(key))
        return None if known is None else known[1]


def watch(_tape: Tape) -> None:
    """Let torch see all weak references but ours where it asks for them before it swaps two tensors."""
    seen = types.ModuleType(weakref.__name__, weakref.__doc__)
    vars(seen).update(vars(weakref))
    seen.getweakrefs = _refs_of_others  # type: ignore[attr-defined]
    before = torch.utils.weakref  # type: ignore[attr-defined]
    torch.utils.weakref = seen  # type: ignore[attr-defined]
    when_removed(lambda: setattr(torch.utils, "weakref", before))


def _refs_of_others(thing: Any) -> list[Any]:
    return [ref for ref in weakref.getweakrefs(thing) if type(ref) is not Ref]
