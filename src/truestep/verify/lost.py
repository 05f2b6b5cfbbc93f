"""Variables that a resumed run does not have as the run that was not killed: best values, buffers, counters.

Their values are noted at the beginning of the first step after the resume, before anything is computed.
"""

from dataclasses import dataclass

from truestep.watch import Process

GENERATOR = "generator "
_MISSING = "not there"


@dataclass(frozen=True, kw_only=True)
class Lost:
    """Something that the script keeps, by the name that the user would write, and its two values."""

    name: str
    ours: str
    theirs: str
    kind: str = "variable"
    has_changed: bool = True
    """Whether it changed in training; what did not may be where to begin, or an order drawn once."""

    @property
    def words(self) -> str:
        """What is told of it."""
        values = [self.theirs, self.ours]
        verb = "has" if all(" items " in value for value in values) else "is"
        shown = [value.rpartition(" ")[0] for value in values] if verb == "has" else values
        values = shown if shown[0] != shown[1] else values
        return f"`{self.name}` {verb} {values[0]} after the resume, {values[1]} without the kill"

    @property
    def is_global_generator(self) -> bool:
        """Whether it is the state of a generator that belongs to no variable."""
        return self.name.startswith(GENERATOR)

    @property
    def is_there(self) -> bool:
        """Whether the resumed run has something under this name."""
        return self.theirs != _MISSING

    @property
    def has_words(self) -> bool:
        """Whether its values tell a reader something."""
        return not self.ours.startswith("state ")


def find(  # limits: three runs
    first: Process, before: Process, resumed: Process, *, step: int
) -> list[Lost]:
    """Return what differs when the first step after a resume begins.

    It must be the same in two runs that had not been killed by then.
    """
    ours, control, theirs = first.plain.get(step), before.plain.get(step), resumed.plain.get(0)
    if not ours or not control or not theirs:
        return []
    begun, kinds = first.plain.get(0, {}), first.begun.get(step, {}).get("kinds", {})
    return [
        Lost(
            name=name,
            ours=value,
            theirs=theirs.get(name, _MISSING),
            kind=kinds.get(name, "variable"),
            has_changed=begun.get(name) != value,
        )
        for name, value in ours.items()
        if theirs.get(name) != value == control.get(name)
    ]
