"""Training and evaluation inputs are the same kind of values in two different scales.

## What it finds
Inputs with evenly spaced values, as pixels and counts have, where training batches and evaluation batches of
one model have the same number of levels, but other limits: 0 to 1 in one and 0 to 255 or -1 to 1 in the
other. The rule reads the first batches of each kind. At least one of the two must be plain pixels or counts,
starting at 0. Inputs that are resized, interpolated or noisy have no levels and are not reported.

## Why it matters
The model is evaluated on inputs that it was never trained on. The score looks like overfitting or a bad
model, while the training itself is correct.

## How to fix
Use the same preprocessing for both: one function or one transform that every split goes through.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.grouping import grouped
from truestep.rules.kit.loaders import scaled_at
from truestep.watch.evidence.facts.loading import InputLevels
from truestep.watch.evidence.facts.optimizing import OptimizerStep

RULE = Meta(
    code="DATA16",
    severity="warning",
    needs=(InputLevels, OptimizerStep),
    fix="Apply the same scaling to training and evaluation inputs.",
)
_LEAST_TRAINED, _LEAST_LEVELS = 2, 8
_TOLERANCE, _LEAST_RATIO = 0.01, 1.5
_MOST_LOST = 0.97
"""A batch may lack some of the lowest and highest levels."""
_PLAIN = (1.0, 1 / 255)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find models whose inputs are scaled in two ways."""
    by_model = grouped(evidence.of(InputLevels), "facts.model")
    for moments in by_model.values():
        trained, scored = (
            [item for item in moments if item.facts.is_trained is wanted] for wanted in (True, False)
        )
        if len(trained) < _LEAST_TRAINED or not all(_is_even(item.facts) for item in moments):
            continue
        one = trained[0].facts
        scored = [item for item in scored if not _is_same(item.facts, one)]  # it may be training data
        if not scored:
            continue
        other = scored[0].facts
        levels = [_num_levels(item.facts) for item in moments]
        are_alike = all(_is_same(item.facts, one) for item in trained) and all(
            _is_same(item.facts, other) for item in scored
        )
        shapes = {tuple(item.facts.shape[1:]) for item in moments}
        if (
            min(levels) < _MOST_LOST * max(levels)
            or len(shapes) != 1
            or not are_alike
            or not _differs(one, other)
        ):
            continue
        if _is_plain(one) or _is_plain(other):
            yield Finding.at(
                scored[0],
                line=scaled_at(evidence, scored[0], is_training=False),
                message="the model is evaluated on inputs of another scale than it is trained on",
                evidence=f"both have {max(levels) + 1} evenly spaced levels: training batches from "
                f"{one.lowest:.4g} to {one.highest:.4g}, evaluation batches from {other.lowest:.4g} to "
                f"{other.highest:.4g}",
            )


def _is_even(facts: InputLevels) -> bool:
    return facts.spacing > 0 and _num_levels(facts) >= _LEAST_LEVELS


def _num_levels(facts: InputLevels) -> int:
    return round((facts.highest - facts.lowest) / facts.spacing) if facts.spacing else 0


def _is_same(one: InputLevels, other: InputLevels) -> bool:
    """Whether two batches have the same limits, but for a few levels."""
    near = (1 - _MOST_LOST) * other.spacing * max(1, _num_levels(other))
    return abs(one.lowest - other.lowest) <= near and abs(one.highest - other.highest) <= near


def _differs(one: InputLevels, other: InputLevels) -> bool:
    """Whether the scale is another one, or where it begins."""
    ratio = one.spacing / other.spacing
    is_moved = abs(one.lowest - other.lowest) > one.spacing * _LEAST_LEVELS
    return ratio > _LEAST_RATIO or ratio < 1 / _LEAST_RATIO or is_moved


def _is_plain(facts: InputLevels) -> bool:
    """Whether these are counts, or pixels from 0 to 1: no mean was subtracted."""
    is_unit = abs(facts.highest - 1) < 1 - _MOST_LOST
    is_count = any(abs(facts.spacing / number - 1) < _TOLERANCE for number in _PLAIN)
    return abs(facts.lowest) < _LEAST_LEVELS * facts.spacing and (is_unit or is_count)
