"""The roster as rules read it: parameters and optimizers as they were when the script ended.

Owns the reading, and which parameters count as left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from truestep.rules.evidence import Evidence
from truestep.watch.evidence.facts.structure import Optimizer, Parameter, ParametersListed
from truestep.watch.evidence.kinds import Place

_FEW = 4
_NEGLIGIBLE = 1e-6
"""At a learning rate of 0.1, 100,000 steps with this decay change a weight by 1 %."""
_COUPLED = ("Adam", "NAdam", "RAdam", "Adamax", "SparseAdam")


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


def find_optimizer(evidence: Evidence, number: int) -> Optimizer | None:
    """Return an optimizer; None if the script was killed before it was listed."""
    listed = [item for moment in evidence.of(ParametersListed) for item in moment.facts.optimizers]
    return next((item for item in reversed(listed) if item.number == number), None)


def coupled_decays(optimizer: Optimizer) -> list[float]:
    """Return the weight decays of its groups if it adds them to gradients, which it then rescales."""
    is_decoupled = any(group.is_decoupled for group in optimizer.groups)
    if optimizer.class_name not in _COUPLED or is_decoupled:
        return []
    decays = [decay_of(optimizer, number) for number in range(len(optimizer.groups))]
    return decays if any(decays) else []


def decay_of(optimizer: Optimizer, group: int) -> float:
    """Return the weight decay that a group's parameters get; 0 if it is negligible or not known.

    An optimizer with a step of its own may leave parameters out, whatever its groups say.
    """
    if optimizer.has_own_step or group >= len(optimizer.groups):
        return 0.0
    decay = optimizer.groups[group].weight_decay
    return decay if decay > _NEGLIGIBLE else 0.0


def where_made(evidence: Evidence, number: int) -> Place | None:
    """Return where an optimizer is created, if that is known."""
    optimizer = find_optimizer(evidence, number)
    return optimizer.made_at if optimizer is not None and optimizer.made_at.file else None
