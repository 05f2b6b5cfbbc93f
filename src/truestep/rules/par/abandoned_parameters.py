"""The optimizer holds parameters that the model no longer uses.

## What it finds
An optimizer with parameters that belong to no called module and get no gradient, while parameters of the
model get gradients and are in no optimizer. It was created before a layer was replaced, or from a different
copy of the model than the one being trained.

## Why it matters
An optimizer keeps the tensors that it was created with. If you replace a layer afterwards, the optimizer
still holds the old one, and the new layer keeps its random weights forever.

## How to fix
Create the optimizer last: after replacing layers, copying, sharding or converting the model.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.roster import Roster, names, read_roster
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.passes import BackwardPass
from truestep.watch.evidence.facts.structure import Optimizer, Parameter, ParametersListed

RULE = Meta(
    code="PAR03",
    severity="error",
    needs=(BackwardPass, OptimizerStep, ParametersListed),
    fix="Create the optimizer after all changes to the model, from the model that is trained.",
)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find optimizers of models that are no longer there."""
    roster = read_roster(evidence)
    if roster is None:
        return
    for optimizer in roster.stepped:
        lost, new = find_abandoned(roster, optimizer)
        if lost and new:
            yield Finding.at(
                optimizer.made_at,
                f"{optimizer.class_name} holds parameters that the model no longer uses, "
                "and not the ones that replaced them",
                step=optimizer.first_step + 1,
                evidence=f"unused and without gradient: {names(lost)}; "
                f"with gradients but in no optimizer: {names(new)}",
            )


def find_abandoned(roster: Roster, optimizer: Optimizer) -> tuple[list[Parameter], list[Parameter]]:
    """Return what an optimizer holds in vain, and what it should hold instead."""
    own = roster.of(optimizer)
    last = max((item.last_step for item in own), default=0)
    enough = min(2, optimizer.num_steps)
    lost = [item for item in own if item.num_lost >= enough and item.last_step == last and not item.is_frozen]
    models = {item.model for item in own if item not in lost}
    new = [
        item
        for item in roster.unmoved
        if item.hidden is None and item.last_step >= optimizer.first_step
        if len(lost) == sum(not one.is_frozen for one in own) or (item.num_passes and item.model in models)
    ]
    return lost, new
