"""A frozen BatchNorm still updates its running statistics.

## What it finds
BatchNorm layers with frozen parameters that are in train mode: their running mean and variance change from
step to step although the rest of the layer does not.

## Why it matters
`requires_grad_(False)` stops gradients, not statistics. Only `eval()` does, and `model.train()` at the start
of an epoch undoes it. The "frozen" part drifts away from what it had learned, and in training it normalizes
by the batch.

## How to fix
Switch the frozen part back to eval mode after each `train()`: `model.train(); model.backbone.eval()`, or
override `train` in the model. `truestep.model.freeze(model, "backbone")` does both permanently.
"""

from collections.abc import Iterator
from typing import Any

from truestep.rules import Evidence, Finding, Meta
from truestep.watch import Moment
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.passes import ForwardPass, ModeSet
from truestep.watch.evidence.facts.structure import ParametersListed, StatisticsMoved

RULE = Meta(
    code="PAR10",
    severity="error",
    needs=(ForwardPass, OptimizerStep, ParametersListed),
    fix="Call eval() on the frozen part after each train(), so that its statistics do not change.",
)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find statistics that move in frozen layers."""
    for moment in evidence.of(StatisticsMoved):
        paths = moment.facts.paths
        yield Finding.at(
            _place(evidence, moment),
            f"{len(paths)} frozen BatchNorm layers are in train mode: their statistics change",
            step=moment.step + 1,
            evidence=f"running means changed in two or more steps, parameters frozen: {', '.join(paths[:4])}",
        )


def _place(evidence: Evidence, moment: Moment[StatisticsMoved]) -> Moment[Any]:
    """Return the line that switched to training mode, if one did."""
    switches = [
        mode
        for mode in evidence.of(ModeSet)
        if mode.at_s < moment.at_s
        and mode.facts.is_training
        and mode.facts.class_name in moment.facts.classes_around
    ]
    return switches[-1] if switches else moment
