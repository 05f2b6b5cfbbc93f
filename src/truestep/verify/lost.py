"""Variables that a resumed run does not have as the run that was not killed: best values, buffers, counters.

Owns which of them could have made a difference: those that the line uses where it shows. Which values they
had is noted at the beginning of the first step after the resume, before anything is computed from them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from truestep.verify.causes import FoundCause
from truestep.verify.lines import assigning, slice_from, tested
from truestep.watch import Process

_GENERATOR = "generator "
_HAS = " has"
_MAX_TOLD = 3


@dataclass(frozen=True, kw_only=True)
class Lost:
    """A variable, by the name that the user would write, and its two values."""

    name: str
    ours: str
    theirs: str

    @property
    def words(self) -> str:
        """What is told of it."""
        name = self.name.removesuffix(_HAS)
        verb = "has" if self.name.endswith(_HAS) else "is"
        return f"`{name}` {verb} {self.theirs} after the resume, {self.ours} without the kill"


def find(first: Process, resumed: Process, *, before: Process, step: int) -> list[Lost]:
    """Return what differs when the first step after a resume begins, one for each variable.

    It must have changed in training, and be the same in two runs that had not been killed by then.
    """
    ours, control, theirs = first.plain.get(step), before.plain.get(step), resumed.plain.get(0)
    begun = first.plain.get(0)
    if not ours or not control or not theirs or not begun:
        return []
    found: dict[str, Lost] = {}
    for name, value in ours.items():
        is_lost = theirs.get(name) != value == control.get(name) != begun.get(name)
        if is_lost and (name in theirs or name.endswith(_HAS)):
            owner = name.removesuffix(_HAS).partition(".")[0]
            found.setdefault(owner, Lost(name=name, ours=value, theirs=theirs.get(name, "nothing")))
    return list(found.values())


def has_generators(first: Process, resumed: Process, *, step: int) -> bool | None:
    """Whether all global generators stand where they should when the first step after a resume begins."""
    ours, theirs = first.plain.get(step), resumed.plain.get(0)
    if not ours or not theirs:
        return None
    names = [name for name in ours if name.startswith(_GENERATOR)]
    return all(ours[name] == theirs.get(name) for name in names)


def refine(finding: FoundCause, found: Sequence[Lost], *, place: tuple[str | None, int | None]) -> None:
    """Name the variable that the line where the difference shows depends on, if there is one."""
    found = [item for item in found if not item.name.startswith(_GENERATOR)]
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
        finding.variables = [item.name.removesuffix(_HAS) for item in found]
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
    return item.name.removesuffix(_HAS).split(".")
