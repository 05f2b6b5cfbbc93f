"""A parameter gets gradients but is in no optimizer.

## What it finds
Parameters that get gradients together with trained ones, that no optimizer holds and nothing else changes: a
part of the model that is missing from the parameter groups, or the parameters of a loss.

## Why it matters
The part keeps its random initial weights, while everything around it is trained to compensate.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.roster import Roster, names, read_roster
from truestep.rules.par.abandoned_parameters import find_abandoned
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.passes import BackwardPass
from truestep.watch.evidence.facts.structure import (
    FileLoaded,
    Optimizer,
    Parameter,
    ParametersListed,
)

RULE = Meta(
    code="PAR04",
    severity="warning",
    needs=(BackwardPass, OptimizerStep, ParametersListed),
    fix="Add these parameters to the optimizer's groups, or freeze them with requires_grad_(False).",
)
_MAX_SHARE_BELOW = 1 / 3
_MAX_SHARE = 3 / 4


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find parameters with gradients that no optimizer has."""
    roster = read_roster(evidence)
    if roster is None or not roster.stepped:
        return
    found: dict[int, list[Parameter]] = {}
    may_be_loaded = evidence.is_part or evidence.has(FileLoaded)
    is_new = not may_be_loaded and not any(item.is_loaded for item in roster.parameters)
    trained = [item for item in roster.parameters if item.groups] if is_new else []
    for item in roster.left_out:
        beside = [other for other in trained if other.model == item.model and _is_of_its_kind(other, item)]
        if item.hidden is None and _is_forgotten(item, is_new=bool(beside)):
            found.setdefault(_optimizer_of(item, roster).number, []).append(item)
    for index, items in found.items():
        optimizer = roster.optimizers[index]
        if all(find_abandoned(roster, optimizer)):
            continue
        yield Finding.at(
            optimizer.made_at,
            f"{len(items)} parameters get gradients but are in no optimizer: they are never trained",
            step=items[0].first_step + 1,
            evidence=f"not in {optimizer.class_name}, and unchanged although each backward pass reaches "
            f"them: {names(items)}",
        )


def _is_forgotten(item: Parameter, *, is_new: bool) -> bool:
    """Whether it is no part kept on purpose: loaded, in evaluation mode, or all below a new head.

    Where nothing was loaded, there is nothing below a head of the same model that is worth keeping.
    """
    if item.is_loaded or not item.is_training or (item.origin == "other" and not is_new):
        return False
    return is_new or item.share <= (_MAX_SHARE if item.is_beside else _MAX_SHARE_BELOW)


def _is_of_its_kind(trained: Parameter, item: Parameter) -> bool:
    """Whether a library's part is left out of what the optimizer has of that library's."""
    return item.origin != "other" or trained.origin == "other"


def _optimizer_of(item: Parameter, roster: Roster) -> Optimizer:
    """Return the optimizer that should have it: one with others of its model, else the busiest."""
    near = [one for one in roster.stepped if any(other.model == item.model for other in roster.of(one))]
    active = [one for one in near or roster.stepped if one.first_step <= item.last_step] or roster.stepped
    return max(active, key=lambda one: one.num_steps)
