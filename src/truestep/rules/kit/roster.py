"""The roster as rules read it: parameters and optimizers as they were when the script ended.

Owns the reading, and which parameters count as left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from truestep.rules.evidence import Evidence
from truestep.watch.evidence.facts.structure import Optimizer, Parameter, ParametersListed
from truestep.watch.evidence.kinds import Place

_FEW = 4


@dataclass(frozen=True, kw_only=True)
class Roster:
    """All parameters and optimizers."""

    parameters: list[Parameter]
    optimizers: list[Optimizer]
    num_steps: int

    def of(self, optimizer: Optimizer) -> list[Parameter]:
        """Return an optimizer's parameters."""
        return [item for item in self.parameters if optimizer.number in item.groups]

    @property
    def stepped(self) -> list[Optimizer]:
        """Optimizers that have made steps."""
        return [item for item in self.optimizers if item.num_steps]

    @property
    def left_out(self) -> list[Parameter]:
        """Parameters that get gradients together with trained ones, and that nothing moves."""
        return [item for item in self.unmoved if item.num_passes >= self._enough]

    @property
    def unmoved(self) -> list[Parameter]:
        """Parameters that get gradients, are in no optimizer, and that nothing moves."""
        return [
            item
            for item in self.parameters
            if not item.groups and not item.is_changed and not item.is_frozen
            if item.num_passes + item.num_alone >= self._enough
        ]

    @property
    def _enough(self) -> int:
        return min(2, max(1, self.num_steps))


def read_roster(evidence: Evidence) -> Roster | None:
    """Return the roster; None if the script was killed before it was written."""
    moments = evidence.of(ParametersListed)
    if not moments:
        return None
    parameters, optimizers = moments[-1].facts
    return Roster(parameters=parameters, optimizers=optimizers, num_steps=evidence.first.num_steps)


def at(place: Place) -> dict[str, Any]:
    """Return a place as a finding says it."""
    return {"file": place.file or None, "line": place.line or None}


def names(parameters: list[Parameter]) -> str:
    """Return the names of the first few parameters, and how many more there are."""
    return few([item.name for item in parameters])


def few(names: Sequence[str], *, num: int | None = None) -> str:
    """Return the first few of some names, and how many more there are; `num` in all, if not all are given."""
    shown = names[:_FEW]
    more = (len(names) if num is None else num) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def names_of(evidence: Evidence, optimizer: int) -> str:
    """Return the first few trainable parameters of an optimizer as `: a, b`; nothing if it is not known."""
    roster = read_roster(evidence)
    own = [item for item in roster.parameters if optimizer in item.groups] if roster is not None else []
    shown = names([item for item in own if not item.is_frozen])
    return f": {shown}" if shown else ""
