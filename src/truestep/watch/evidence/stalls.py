"""Where a process stands that makes no progress: in which collective, at which line, in which kind of wait.

Owns the facts of one rank and how they are written as JSON. They are gathered in the script's process, and
read in ours.
"""

import json
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from truestep.watch.evidence.kinds import Place

Doing = Literal["waiting", "stuck", "living", "ended", "raised"]
"""What a process does: it waits in a collective; it waits for something that cannot come; it may continue on
its own; its script has ended; its script has raised an error that no collective explains."""

ASK = "ask"
"""A file beside those that ranks write: all of them write where they stand, moving or not."""
INIT, NEW_GROUP = "init_process_group", "new_group"
"""Names of the meetings that happen before a group exists."""


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One operation that several ranks must call together."""

    group: str
    number: int
    """How many the group has had with it, counted from 1."""
    name: str
    """As torch names it: `all_reduce`."""
    members: tuple[int, ...] = ()
    """The ranks of its group; of a send or a receive the other rank."""
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    place: Place | None = None
    caller: str = ""
    """What the user's line calls, if it is not the operation: `backward`."""
    is_pair: bool = False
    """Whether it is a send or a receive between two ranks."""

    @property
    def num_elements(self) -> int:
        """How many numbers it carries."""
        total = 0
        for shape in self.shapes:
            count = 1
            for size in shape:
                count *= size
            total += count
        return total

    @property
    def kind(self) -> str:
        """The operation and its tensors: collectives of one line have one kind as a rule."""
        return f"{self.name} {self.tensors}" if self.tensors else self.name

    @property
    def tensors(self) -> str:
        """Its tensors for a reader: `float32[10, 4]`."""
        dtypes = [*self.dtypes, *[""] * len(self.shapes)]
        parts = [
            f"{dtype}[{', '.join(map(str, shape))}]"
            for shape, dtype in zip(self.shapes, dtypes, strict=False)
        ]
        return ", ".join(parts[:3]) + (f" and {len(parts) - 3} more" if len(parts) > 3 else "")


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What is known of one rank."""

    rank: int
    size: int
    pid: int
    doing: Doing
    host: str = ""
    how: str = ""
    """If it is stuck, in what: `lock`, `input`, `queue`, `loader` or `stopped`."""
    since_s: float = 0.0
    """For how long it has been there."""
    stack: tuple[Place, ...] = ()
    """The user's own lines, innermost first."""
    numbers: tuple[dict[str, int], ...] = ()
    """Whole numbers in the variables of those lines, such as counters of loops."""
    call: str = ""
    """What the innermost of them has called."""
    pending: Collective | None = None
    made: dict[str, int] | None = None
    """How many collectives it has entered in each group."""
    by_kind: dict[str, int] | None = None
    """How many of them there were of each kind, as far back as is known."""
    steps: int | None = None
    """How many optimizer steps it has made, if they are counted."""
    error: str = ""

    @property
    def place(self) -> Place | None:
        """The user's line."""
        if self.stack:
            return self.stack[0]
        return self.pending.place if self.pending is not None else None

    def pack(self) -> str:
        """Return it as JSON."""
        members = self.pending.members if self.pending else ()
        # Not each member: thousands of ranks would write thousands of numbers each.
        short = replace(self, pending=replace(self.pending, members=())) if self.pending else self
        fields = asdict(short)
        if fields["pending"]:
            fields["pending"]["members"] = _span_of(members) or members
        return json.dumps(fields)

    @staticmethod
    def unpack(text: str) -> "Standing":
        """Return what `pack` has written."""
        fields = json.loads(text)
        pending = fields["pending"]
        return Standing(
            **{
                **fields,
                "stack": tuple(map(_place, fields["stack"])),
                "numbers": tuple(fields["numbers"]),
                "pending": None if pending is None else _collective(pending),
            }
        )


def _place(values: list[Any]) -> Place:
    return Place(*values)


def _span_of(members: tuple[int, ...]) -> dict[str, int] | None:
    """Return ranks that are evenly spaced, as most groups have them, in three numbers."""
    if len(members) < 3 or members[0] >= members[1]:
        return None
    span = range(members[0], members[-1] + 1, members[1] - members[0])
    return {"start": span.start, "stop": span.stop, "step": span.step} if members == tuple(span) else None


def _members(written: Any) -> tuple[int, ...]:
    return _spread(**written) if isinstance(written, dict) else tuple(written)


@lru_cache(64)
def _spread(*, start: int, stop: int, step: int) -> tuple[int, ...]:
    """Return the ranks of a group; those who have the same group share them."""
    return tuple(range(start, stop, step))


def _collective(fields: dict[str, Any]) -> Collective:
    place = fields["place"]
    return Collective(
        **{
            **fields,
            "members": _members(fields["members"]),
            "shapes": tuple(map(tuple, fields["shapes"])),
            "dtypes": tuple(fields["dtypes"]),
            "place": None if place is None else _place(place),
        }
    )
