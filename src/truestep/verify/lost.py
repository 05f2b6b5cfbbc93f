"""Variables that a resumed run does not have as the run that was not killed: best values, buffers, counters.

Owns which of them could have made a difference: those that the line uses where it shows. Which values they
had is noted at the beginning of the first step after the resume, before anything is computed from them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from truestep.verify.causes import FoundCause
from truestep.verify.lines import assigning, slice_from, tested
from truestep.watch import Process

GENERATOR = "generator "
_MAX_TOLD = 3
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


def has_generators(first: Process, resumed: Process, *, step: int) -> bool | None:
    """Whether all global generators stand where they should when the first step after a resume begins."""
    ours, theirs = first.plain.get(step), resumed.plain.get(0)
    if not ours or not theirs:
        return None
    names = [name for name in ours if name.startswith(GENERATOR)]
    return all(ours[name] == theirs.get(name) for name in names)


def refine(finding: FoundCause, found: Sequence[Lost], *, place: tuple[str | None, int | None]) -> None:
    """Name the variable that the line where the difference shows depends on, if there is one."""
    found = [item for item in found if item.has_changed and not item.is_global_generator]
    file, line = place
    if finding.name == "end-not-restored":
        file, names = finding.file, tested(finding.file)
        deciding = [item for item in found if {_parts(item)[0], f".{_parts(item)[-1]}"} & names]
        found = deciding or found
        chosen = deciding[0] if deciding else None
    else:
        chosen = _nearest(found, file, line) if file is not None and line is not None else None
        found = [chosen] if chosen is not None else found
    if chosen is not None:
        finding.variables = [item.name for item in found]
        if finding.name != "end-not-restored":
            finding.name = "variable-not-saved"
        finding.file, finding.line = file, assigning(file, _parts(chosen)) or finding.line
    finding.evidence += [item.words for item in found[:_MAX_TOLD]]


def _nearest(found: Sequence[Lost], file: str, line: int) -> Lost | None:
    """Return the one that the nearest statement uses, read backwards from a line."""
    for statement in slice_from(file, line):
        for item in found:
            owner, *others = _parts(item)
            if owner in statement.uses or any(f".{part}" in statement.uses for part in (owner, *others)):
                return item
    return None


def _parts(item: Lost) -> list[str]:
    return item.name.split(".")
