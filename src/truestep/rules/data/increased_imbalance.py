"""Weights that should balance the classes increase the imbalance.

## What it finds
Weights of classes that are their frequencies instead of their inverse: those of a `WeightedRandomSampler`,
the `weight` of a cross entropy, or a `pos_weight` that is positives / negatives.

## Why it matters
The rare classes were to count more and count less. The model hardly sees them, and the accuracy does not
show it.

## How to fix
Weight by the inverse of the frequency: `1 / counts[label]` for each sample, or `counts.sum() / counts` for
each class of a loss. `pos_weight` is `negatives / positives`.
"""

from collections.abc import Iterator
from typing import Any

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.grouping import by_line
from truestep.rules.kit.where import only_call
from truestep.watch import Moment
from truestep.watch.evidence.facts.passes import ClassesWeighted

RULE = Meta(
    code="DATA12",
    severity="error",
    needs=(ClassesWeighted,),
    fix="Weight by the inverse of the class frequency: 1 / counts[label], or negatives / positives.",
)
_IMBALANCED, _LEAST_SAMPLES = 1.5, 64


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find weights that are the frequencies of classes."""
    for moments in by_line(evidence.of(ClassesWeighted)).values():
        weights, made_by = moments[0].facts.weights, moments[0].facts.made_by
        if any(moment.facts.weights != weights for moment in moments):
            continue
        counts = [sum(numbers) for numbers in zip(*(moment.facts.counts for moment in moments), strict=True)]
        if not _is_frequency(weights, counts):
            continue
        most, least = counts.index(max(counts)), counts.index(min(counts))
        yield Finding.at(
            moments[0],
            f"{made_by} weights the classes by their frequency, not by its inverse",
            line=_line(evidence, moments[0], made_by),
            evidence=f"of the {sum(counts)} samples that were read, {counts[most]} are of a class with "
            f"weight {weights[most]:.3g}, and {counts[least]} of one with weight {weights[least]:.3g}",
        )


def _is_frequency(weights: list[float], counts: list[int]) -> bool:
    """Whether weights are in proportion to the numbers of samples, as far as these show it."""
    total = sum(counts)
    if total < _LEAST_SAMPLES or min(weights) <= 0 or max(counts) < _IMBALANCED * max(1, min(counts)):
        return False
    if weights[0] == 1 and all(abs(100 * weight - round(100 * weight)) < 1e-4 for weight in weights):
        return False  # chosen by hand
    shares = [(weight / sum(weights), count / total) for weight, count in zip(weights, counts, strict=True)]
    return all(abs(one - two) <= 3 * (two * (1 - two) / total) ** 0.5 + 0.01 for one, two in shares)


def _line(evidence: Evidence, moment: Moment[Any], name: str) -> int | None:
    """Return where a class is created, if that is one place."""
    source = evidence.source(moment.file)
    return (only_call(source.tree, name) if source is not None else None) or moment.line
