"""The roster as rules read it: parameters and optimizers as they were when the script ended.

Owns the reading, and which parameters count as left out.
"""

from dataclasses import dataclass
from typing import Any

from truestep.rules.evidence import Evidence
from truestep.watch.evidence.facts.structure import ParametersListed

_FEW = 4


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter; the fields are those of the watch's roster."""

    path: str | None
    shape: list[int]
    first_step: int
    last_step: int
    model: int | None
    holder: str | None
    origin: str | None
    is_norm: bool
    is_training: bool
    hidden: list[Any] | None
    groups: list[list[int]]
    is_frozen: bool
    is_loaded: bool
    is_changed: bool
    has_grad: bool
    num_passes: int
    num_alone: int
    is_beside: bool
    share: float
    num_steps: int
    num_lost: int

    @property
    def name(self) -> str:
        """Its name, or its shape if it has none."""
        return self.path or f"one of shape {tuple(self.shape)}"

    def is_in(self, optimizer: "Optimizer") -> bool:
        """Whether the optimizer holds it."""
        return any(index == optimizer.index for index, _ in self.groups)


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """An optimizer; the fields are those of the watch's roster."""

    index: int
    kind: str
    site: list[Any]
    was_frozen: bool
    number: int | None
    step_site: list[Any]
    first_step: int
    num_steps: int
    is_frozen: bool
    groups: list[dict[str, Any]]
    defaults: dict[str, Any]
    is_seen: bool

    @property
    def place(self) -> dict[str, Any]:
        """Where it is made, as a finding says it."""
        return {"file": self.site[0] or None, "line": self.site[1] or None}

    @property
    def step_place(self) -> dict[str, Any]:
        """Where its steps are made."""
        return {"file": self.step_site[0] or None, "line": self.step_site[1] or None}


@dataclass(frozen=True, kw_only=True)
class Roster:
    """All parameters and optimizers."""

    parameters: list[Parameter]
    optimizers: list[Optimizer]
    num_steps: int

    def of(self, optimizer: Optimizer) -> list[Parameter]:
        """Return an optimizer's parameters."""
        return [item for item in self.parameters if item.is_in(optimizer)]

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
    value = moments[-1].facts.value
    return Roster(
        parameters=[Parameter(**item) for item in value["parameters"]],
        optimizers=[Optimizer(**item) for item in value["optimizers"]],
        num_steps=evidence.first.num_steps,
    )


def names(parameters: list[Parameter]) -> str:
    """Return the names of the first few parameters, and how many more there are."""
    shown = ", ".join(item.name for item in parameters[:_FEW])
    more = len(parameters) - _FEW
    return f"{shown} and {more} more" if more > 0 else shown
