"""A new layer is frozen together with the loaded ones.

## What it finds
A model of which some layers were loaded from a checkpoint and others were not. One of the new layers is
frozen: it still has the random weights that it was created with, is in the path to the loss, and never gets a
gradient, while others are trained.

## Why it matters
The trained layers get a random mixture of the features as their input. The loss falls, only less than it
should: what the new layer throws away is lost.

## How to fix
Freeze what was loaded, not what is new: `for p in model.backbone.parameters(): p.requires_grad_(False)`,
before new layers are added to the model.
"""

import ast
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.analysis.places import name_of
from truestep.rules.analysis.roster import Roster, names, read_roster
from truestep.rules.analysis.syntax import walk
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.structure import Parameter, ParametersListed

RULE = Meta(
    code="PAR18",
    severity="warning",
    needs=(OptimizerStep, ParametersListed),
    fix="Freeze the loaded layers only: new layers have to learn.",
    is_preview=True,
)
_LAYERS = frozenset({"Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose2d", "Bilinear"})


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find layers that were neither loaded nor trained, in models of which others were."""
    roster = read_roster(evidence)
    if roster is None or evidence.is_part:
        return
    for model in sorted({item.model for item in roster.parameters if item.model is not None}):
        own = [item for item in roster.parameters if item.model == model]
        loaded = [item for item in own if item.is_loaded and item.is_frozen]
        trained = [item for item in own if item.has_grad and item.groups]
        lost = [item for item in own if _is_lost(item) and not _is_meant(evidence, item)]
        if loaded and trained and lost:
            yield _report(evidence, roster, loaded, trained, lost)


def _is_lost(item: Parameter) -> bool:
    is_still = not item.has_grad and not item.is_changed and not item.num_passes
    return is_still and item.is_new and not item.is_loaded and item.layer in _LAYERS


def _is_meant(evidence: Evidence, item: Parameter) -> bool:
    """Whether a line freezes this very layer: `self.projection.requires_grad_(False)`."""
    words = {word for word in (item.path or "").split(".")[:-1] if not word.isdigit()}
    for source in evidence.sources:
        for node in walk(source.tree):
            lines = [node] if isinstance(node, ast.For | ast.Expr | ast.Assign) else []
            for line in lines:
                head = line.iter if isinstance(line, ast.For) else line
                mentioned = {name_of(part) for part in walk(line)}
                if {"requires_grad", "requires_grad_"} & mentioned and words & {
                    name_of(part) for part in walk(head)
                }:
                    return True
    return False


def _report(  # limits: private to this module
    evidence: Evidence,
    roster: Roster,
    loaded: list[Parameter],
    trained: list[Parameter],
    lost: list[Parameter],
) -> Finding:
    place = _frozen_at(evidence)
    if place is None:
        made = roster.stepped[0].made_at
        place = (made.file, made.line)
    return Finding(
        message=f"new layers are frozen and stay random: {names(lost)}",
        file=place[0],
        line=place[1],
        evidence=f"{len(loaded)} frozen parameters were loaded, {len(lost)} were not and have the same "
        f"random values as at the start after {roster.num_steps} steps, without a gradient; "
        f"{len(trained)} others are trained, such as {trained[0].name}",
    )


def _frozen_at(evidence: Evidence) -> tuple[str, int] | None:
    """Return the last line that freezes parameters in a loop over a model."""
    found = []
    for source in evidence.sources:
        for loop in walk(source.tree):
            for node in walk(loop) if isinstance(loop, ast.For) else ():
                if isinstance(node, ast.Assign) and name_of(node.targets[0]) == "requires_grad":
                    value = node.value
                elif isinstance(node, ast.Call) and name_of(node.func) == "requires_grad_" and node.args:
                    value = node.args[0]
                else:
                    continue
                if not (isinstance(value, ast.Constant) and value.value):
                    found.append((source.path, node.lineno))
    return max(found) if found else None
