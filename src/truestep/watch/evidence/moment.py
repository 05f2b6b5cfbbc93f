"""A moment: something that happened, when, at which line of the user's, and the facts of its kind.

Owns how facts that were JSON become facts again, and moments that are asked for by their kinds.
"""

from dataclasses import dataclass
from functools import cache, cached_property
from types import NoneType, UnionType
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints, overload

from truestep.watch.evidence.kinds import BY_NAME, NUM_SHARED, Facts

F = TypeVar("F", bound=Facts)
G = TypeVar("G", bound=Facts)
_Seen_co = TypeVar("_Seen_co", bound=Facts, covariant=True)

_PLAIN = (Any, bool, int, float, str, int | str, float | str)


@dataclass(frozen=True, kw_only=True)
class Moment(Generic[_Seen_co]):
    """Something that happened: in which step, when, at which line of the user's, and facts."""

    facts: _Seen_co
    step: int
    """How many steps had been made before."""
    at_s: float
    took_s: float
    file: str | None
    line: int | None
    function: str | None


class Observed:
    """Moments, to be asked for by their kinds."""

    def all_moments(self) -> list[Moment[Any]]:
        """Return what was observed, in the order in which it ended."""
        raise NotImplementedError

    @cached_property
    def _by_kind(self) -> dict[type[Facts], list[Moment[Any]]]:
        found: dict[type[Facts], list[Moment[Any]]] = {}
        for moment in self.all_moments():
            found.setdefault(type(moment.facts), []).append(moment)
        return found

    @overload
    def of(self, one: type[F], /) -> list[Moment[F]]: ...
    @overload
    def of(self, one: type[F], other: type[G], /) -> list[Moment[F | G]]: ...
    @overload
    def of(self, /, *kinds: type[Facts]) -> list[Moment[Any]]: ...
    def of(self, /, *kinds: type[Facts]) -> list[Moment[Any]]:
        """Return the moments of these kinds, in the order in which they ended."""
        if len(kinds) == 1:
            return self._by_kind.get(kinds[0], [])
        return [moment for moment in self.all_moments() if type(moment.facts) in kinds]

    def has(self, *kinds: type[Facts]) -> bool:
        """Whether moments of all these kinds were observed."""
        return all(kind in self._by_kind for kind in kinds)


@dataclass(frozen=True, kw_only=True)
class Written:
    """What is written once for all moments that are alike: kind, line, and the facts that they share."""

    kind: type[Facts]
    site: int
    shared: Facts

    @staticmethod
    def read(name: str, *, site: int, shared: list[Any]) -> "Written":
        """Return what was written as JSON."""
        kind = BY_NAME[name]
        return Written(kind=kind, site=site, shared=_decode_all(_hints(kind)[: NUM_SHARED[kind]], shared))

    @cached_property
    def plain(self) -> Facts:
        """The facts of a moment in which nothing varied."""
        return self.kind(*self.shared, *(None for _ in _hints(self.kind)[len(self.shared) :]))

    def facts(self, varying: list[Any] | None) -> Facts:
        """Return the facts of one moment."""
        if varying is None:
            return self.plain
        return self.kind(*self.shared, *_decode_all(_hints(self.kind)[len(self.shared) :], varying))


def unnamed(name: str, values: list[Any]) -> Facts:
    """Return the facts that `named` gave, after they were JSON."""
    kind = BY_NAME[name]
    return kind(*_decode_all(_hints(kind), values))


@cache
def _hints(kind: type[Facts]) -> list[Any]:
    return list(get_type_hints(kind).values())


def _decode_all(hints: list[Any], values: list[Any]) -> Facts:
    return tuple(_decode(hint, value) for hint, value in zip(hints, values, strict=True))


def _decode(hint: Any, value: Any) -> Any:
    """Return a value of a type, from what JSON has left of it."""
    if value is None or hint in _PLAIN:
        return value
    if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
        return hint(*_decode_all(_hints(hint), value))
    origin, given = get_origin(hint), get_args(hint)
    if origin is UnionType:
        return _decode(next(item for item in given if item is not NoneType), value)
    if origin is dict:
        return {given[0](key): _decode(given[1], item) for key, item in value.items()}
    if origin is tuple and given[-1] is not Ellipsis:
        return _decode_all(list(given), value)
    if origin in (list, tuple):
        return origin(_decode(given[0], item) for item in value)
    raise TypeError(f"a fact has the type {hint}, which cannot be written")
