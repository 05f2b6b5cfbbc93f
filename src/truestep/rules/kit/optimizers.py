"""Optimizers by their numbers: of which class they are, and where they are created.

Owns looking them up. Which of their parameters are trained is in the family `par`.
"""

from typing import Any

from truestep.rules.evidence import Evidence
from truestep.watch.evidence.facts.structure import Optimizer, ParametersListed

_NEGLIGIBLE = 1e-6
"""At a learning rate of 0.1, 100,000 steps with this decay change a weight by 1 %."""
_COUPLED = ("Adam", "NAdam", "RAdam", "Adamax", "SparseAdam")


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


def where_made(evidence: Evidence, number: int) -> dict[str, Any]:
    """Return file and line at which an optimizer is created, as a finding takes them; else nothing."""
    optimizer = find_optimizer(evidence, number)
    if optimizer is None or not optimizer.made_at.file:
        return {}
    return {"file": optimizer.made_at.file, "line": optimizer.made_at.line}
