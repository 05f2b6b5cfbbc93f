"""Kinds of facts: what the script's process needs of them.

Owns how a kind is defined. Kinds are named tuples: compared and hashed in C, so that a moment that comes in
every step costs little, and written as lists. Reading them back is left to `moment`.
"""

from collections import _tuplegetter  # type: ignore[attr-defined]
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

Facts = tuple[Any, ...]
F = TypeVar("F", bound=Facts)

NUM_SHARED: dict[type[Facts], int] = {}
"""For each kind: how many fields come first that are alike for many moments, and are written once for all."""
BY_NAME: dict[str, type[Facts]] = {}
NOT_CHECKED = "not checked: "
"""Begins the reason why something was not looked at."""
UNREAD = "a digest"
"""What was in trouble where something could not be read."""
NEVER_CUT: set[type[Facts]] = set()
"""Kinds that steps are counted by: kept whole, however many facts there are."""


if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple  # noqa: PLC0414 - exported
else:

    class _NamedType(type):
        """Makes a class whose fields are its annotations. `typing.NamedTuple` takes ten times as long."""

        def __new__(cls, name, bases, members):  # limits: Python calls it like this
            made = super().__new__(cls, name, bases, {"__slots__": (), **members})
            made._fields = tuple(made.__annotations__)
            for place, field in enumerate(made._fields):
                setattr(made, field, _tuplegetter(place, ""))
            return made

    class NamedTuple(tuple, metaclass=_NamedType):
        """A named tuple that is cheap to define: each start of a script defines a hundred."""

        def __new__(cls, *values, **given):  # noqa: D102
            if given or len(values) != len(cls._fields):
                rest = cls._fields[len(values) :]
                if {*given} != {*rest} or len(values) > len(cls._fields):
                    raise TypeError(f"{cls.__name__} has the fields {', '.join(cls._fields)}")
                values = (*values, *(given[field] for field in rest))
            return tuple.__new__(cls, values)

        def _asdict(self):
            return dict(zip(self._fields, self, strict=True))

        def _replace(self, **given):
            return type(self)(**(self._asdict() | given))

        def __getnewargs__(self):
            return tuple(self)

        def __repr__(self):
            return f"{type(self).__name__}(**{self._asdict()})"


class Place(NamedTuple):
    """A line of the user's."""

    file: str
    line: int
    function: str


def kind(*, varies_from: str | None = None, is_counted: bool = False) -> Callable[[type[F]], type[F]]:
    """Make a named tuple a kind of moment. Fields from `varies_from` on change from one time to the next."""

    def register(facts: type[F]) -> type[F]:
        fields: tuple[str, ...] = facts._fields  # type: ignore[attr-defined]
        NUM_SHARED[facts] = len(fields) if varies_from is None else fields.index(varies_from)
        BY_NAME[facts.__name__] = facts
        if is_counted:
            NEVER_CUT.add(facts)
        return facts

    return register


def named(facts: Facts) -> tuple[str, Facts]:
    """Return facts as JSON can hold them; `unnamed` reads them back."""
    return type(facts).__name__, facts
