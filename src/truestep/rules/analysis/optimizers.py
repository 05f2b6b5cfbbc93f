"""Optimizers by their numbers: of which class they are, and where they are created.

Owns looking them up. Which of their parameters are trained is in the family `par`.
"""

from typing import Any

from truestep.rules.evidence import Evidence
from truestep.watch.evidence.facts.structure import Optimizer, ParametersListed

_COUPLED = ("Adam", "NAdam", "RAdam", "Adamax", "SparseAdam")


def find_optimizer(evidence: Evidence, number: int) -> Optimizer | None:
    """Return an optimizer; None if the script was killed before it was listed."""
    listed = [item for moment in evidence.of(ParametersListed) for item in moment.facts.optimizers]
    return next((item for item in reversed(listed) if item.number == number), None)


def coupled_decays(optimizer: Optimizer) -> list[float]:
    """Return the weight decays of its groups if it adds them to gradients, which it then rescales."""
    decays = [group.weight_decay for group in optimizer.groups]
    is_decoupled = any(group.is_decoupled for group in optimizer.groups)
    return decays if optimizer.class_name in _COUPLED and any(decays) and not is_decoupled else []


def where_made(evidence: Evidence, number: int) -> dict[str, Any]:
    """Return file and line at which an optimizer is created, as a finding takes them; else nothing."""
    optimizer = find_optimizer(evidence, number)
    if optimizer is None or not optimizer.made_at.file:
        return {}
    return {"file": optimizer.made_at.file, "line": optimizer.made_at.line}
