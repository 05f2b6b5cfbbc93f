"""Most units of a layer are dead.

## What it finds
Layers in which at least three quarters of the units output zero after their ReLU for every sample of a batch.
The rule passes a batch through a copy of the model at several times, and reports what holds twice.

## Why it matters
A unit that is zero for all samples gets no gradient and never changes: it contributes nothing. The usual
reasons are a bias that starts far below zero, a learning rate that is too high, or inputs far from zero.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.probe._layers import lasting
from truestep.watch.evidence.facts.passes import LayerActivity, LayerState

RULE = Meta(
    code="PROBE04",
    severity="warning",
    is_observed=lambda evidence: any(True for _ in lasting(evidence, _dead, at_least=0.0)),
    needs=(LayerActivity,),
    caused_by=("DATA07",),
    fix="Initialize biases to zero, lower the learning rate, normalize inputs, or use LeakyReLU or GELU.",
)
_MOST = 0.75


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find layers whose units are zero for all samples."""
    for moment, layer, share in lasting(evidence, _dead, at_least=_MOST):
        yield Finding.at(
            layer.place or moment,
            "most units of this layer are dead: they are zero for every sample",
            step=moment.step,
            evidence=f"{share:.0%} of {layer.num_units} units were zero for all {moment.facts.num_samples} "
            f"samples of a batch, after step {moment.step} and earlier",
        )


def _dead(layer: LayerState) -> float | None:
    return layer.dead
