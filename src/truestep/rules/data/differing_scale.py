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
from truestep.watch.evidence.facts.loading import InputMeasured, Levels
from truestep.watch.evidence.facts.optimizing import OptimizerStep

RULE = Meta(
    code="DATA16",
    severity="warning",
    needs=(InputMeasured, OptimizerStep),
    fix="Apply the same scaling to training and evaluation inputs.",
)
_LEAST_TRAINED, _LEAST_LEVELS = 2, 8
_TOLERANCE, _LEAST_RATIO = 0.01, 1.5
_MOST_LOST = 0.97
"""A batch may lack some of the lowest and highest levels."""
_PLAIN = (1.0, 1 / 255)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find models whose inputs are scaled in two ways."""
    levelled = [moment for moment in evidence.of(InputMeasured) if moment.facts.levels is not None]
    for moments in grouped(levelled, "facts.model").values():
        every = [(item, levels) for item in moments if (levels := item.facts.levels) is not None]
        trained = [pair for pair in every if pair[0].facts.is_trained]
        scored = [pair for pair in every if not pair[0].facts.is_trained]
        if len(trained) < _LEAST_TRAINED or not all(_is_even(levels) for _, levels in every):
            continue
        one = trained[0][1]
        scored = [pair for pair in scored if not _is_same(pair[1], one)]  # it may be training data
        if not scored:
            continue
        first, other = scored[0]
        num_levels = [_num_levels(levels) for _, levels in every]
        are_alike = all(_is_same(levels, one) for _, levels in trained) and all(
            _is_same(levels, other) for _, levels in scored
        )
        shapes = {tuple(item.facts.shape[1:]) for item, _ in every}
        is_whole = min(num_levels) >= _MOST_LOST * max(num_levels) and len(shapes) == 1
        if is_whole and are_alike and _differs(one, other) and (_is_plain(one) or _is_plain(other)):
            yield Finding.at(
                first,
                line=scaled_at(evidence, first, is_training=False),
                message="the model is evaluated on inputs of another scale than it is trained on",
                evidence=f"both have {max(num_levels) + 1} evenly spaced levels: training batches from "
                f"{one.lowest:.4g} to {one.highest:.4g}, evaluation batches from {other.lowest:.4g} to "
                f"{other.highest:.4g}",
            )


def _is_even(facts: Levels) -> bool:
    return facts.spacing > 0 and _num_levels(facts) >= _LEAST_LEVELS


def _num_levels(facts: Levels) -> int:
    return round((facts.highest - facts.lowest) / facts.spacing) if facts.spacing else 0


def _is_same(one: Levels, other: Levels) -> bool:
    """Whether two batches have the same limits, but for a few levels."""
    near = (1 - _MOST_LOST) * other.spacing * max(1, _num_levels(other))
    return abs(one.lowest - other.lowest) <= near and abs(one.highest - other.highest) <= near


def _differs(one: Levels, other: Levels) -> bool:
    """Whether the scale is another one, or where it begins."""
    ratio = one.spacing / other.spacing
    is_moved = abs(one.lowest - other.lowest) > one.spacing * _LEAST_LEVELS
    return ratio > _LEAST_RATIO or ratio < 1 / _LEAST_RATIO or is_moved


def _is_plain(facts: Levels) -> bool:
    """Whether these are counts, or pixels from 0 to 1: no mean was subtracted."""
    is_unit = abs(facts.highest - 1) < 1 - _MOST_LOST
    is_count = any(abs(facts.spacing / number - 1) < _TOLERANCE for number in _PLAIN)
    return abs(facts.lowest) < _LEAST_LEVELS * facts.spacing and (is_unit or is_count)
