"""Activations are saturated, or the same for every sample.

## What it finds
Inner layers whose tanh or sigmoid is at the limits of its range for most values, and models whose output is
the same for all samples of a batch. The rule passes a batch through a copy of the model at several times, and
reports what holds twice.

## Why it matters
At its limits a tanh or sigmoid has almost no slope: gradients vanish there, and earlier layers learn nothing.
A model with the same output for every input has learned nothing about it. Causes are initial weights that are
too large, unnormalized inputs and learning rates that are too high.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.probe._layers import lasting
from truestep.watch.evidence.facts.passes import LayerActivity

RULE = Meta(
    code="PROBE06",
    severity="warning",
    is_observed=lambda evidence: len(evidence.of(LayerActivity)) > 1,
    needs=(LayerActivity,),
    caused_by=("DATA07", "PROBE04"),
    fix="Initialize by the layer's width (xavier_normal_), normalize inputs, lower the learning rate.",
)
_MOST = 0.6


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find saturated layers, and models that give the same for every input."""
    for moment, layer, share in lasting(evidence, lambda layer: layer.saturated, at_least=_MOST):
        yield Finding.at(
            layer.place or moment,
            f"{layer.operation} is saturated: most of its values are at the limits of its range",
            step=moment.step,
            evidence=f"{share:.0%} of the values of a batch of {moment.facts.num_samples}, shape "
            f"{layer.shape}, after step {moment.step} and earlier",
        )
    yield from _collapsed(evidence)


def _collapsed(evidence: Evidence) -> Iterator[Finding]:
    seen: dict[int, int] = {}
    for moment in evidence.of(LayerActivity):
        model = moment.facts.model
        seen[model] = seen.get(model, 0) + 1 if moment.facts.is_collapsed else 0
        if seen[model] == 2:
            flat = (layer.place for layer in moment.facts.layers if layer.is_flat and layer.place)
            yield Finding.at(
                next(flat, moment),
                "activations collapsed: the model gives the same output for every sample",
                step=moment.step,
                evidence=f"{moment.facts.num_samples} different inputs, one output, after step "
                f"{moment.step} and earlier",
            )
