"""Weights that should balance the classes increase the imbalance.

## What it finds
A `WeightedRandomSampler` that draws the most frequent class even more often, and the rarest even less
often, than the data have it. One that has a weight for each class instead of each sample, so that only the
first few samples are ever drawn. Class weights of a loss that are the classes' frequencies instead of their
inverse. A `pos_weight` that is positives / negatives instead of negatives / positives.

## Why it matters
The rare classes were to count more and count less. The model hardly sees them, and the accuracy does not
show it.

## How to fix
Weight by the inverse of the frequency: `1 / counts[label]` for each sample, or `counts.sum() / counts` for
each class of a loss. `pos_weight` is `negatives / positives`.
"""

from collections import Counter
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.grouping import by_line
from truestep.rules.kit.loaders import find_loaders
from truestep.rules.kit.where import only_call
from truestep.watch import Moment
from truestep.watch.evidence.facts.loading import ClassDraws, SamplesUnweighted
from truestep.watch.evidence.facts.passes import ClassesWeighted, PositivesWeighted

_KINDS = (ClassDraws, SamplesUnweighted, ClassesWeighted, PositivesWeighted)
RULE = Meta(
    code="DATA12",
    severity="error",
    is_observed=lambda evidence: any(map(evidence.has, _KINDS)),
    fix="Weight by the inverse of the class frequency: 1 / counts[label].",
)
_IMBALANCED, _LEAST_SAMPLES, _MOST_LOWERED = 1.5, 64, 0.9
_RARE, _LEAST_POSITIVES, _NEAR = 0.4, 16, 0.25


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find weights that go with the frequency of classes."""
    for moment in evidence.of(ClassDraws):
        yield from _check_sampler(evidence, moment)
    for short in evidence.of(SamplesUnweighted):
        facts = short.facts
        yield Finding(
            message=f"the sampler draws only the first {facts.num_weights} samples: others have no weight",
            file=short.file,
            line=_call_line(evidence, short, "WeightedRandomSampler"),
            evidence=f"{facts.num_weights} weights for {facts.num_samples} samples",
            fix="Pass a weight for each sample: class_weights[labels].",
        )
    weighted = evidence.of(ClassesWeighted)
    if weighted:
        yield from _check_loss(evidence, weighted)
    sites = by_line(evidence.of(PositivesWeighted))
    for moments in sites.values():
        yield from _check_positives(evidence, moments)


def _check_sampler(evidence: Evidence, moment: Moment[ClassDraws]) -> Iterator[Finding]:
    counts, shares = moment.facts.counts, moment.facts.shares
    total = sum(counts.values())
    most, least = max(counts, key=counts.__getitem__), min(counts, key=counts.__getitem__)
    before, after = counts[most] / total, shares.get(most, 0.0)
    rare, drawn = counts[least] / total, shares.get(least, 0.0)
    if counts[most] < _IMBALANCED * counts[least] or after <= before or drawn > _MOST_LOWERED * rare:
        return
    yield Finding(
        message="the sampler draws the frequent class even more often: its weights are not inverted",
        file=moment.file,
        line=_call_line(evidence, moment, "WeightedRandomSampler"),
        evidence=f"class {most} is {before:.0%} of the data and {after:.0%} of the draws; class {least} is "
        f"{rare:.1%} of the data and {drawn:.1%} of the draws, expected more",
    )


def _check_loss(evidence: Evidence, moments: list[Moment[ClassesWeighted]]) -> Iterator[Finding]:
    weights = moments[0].facts.weights
    if any(moment.facts.weights != weights for moment in moments) or min(weights) <= 0:
        return
    counts = _class_counts(evidence, moments)
    numbers = [counts.get(label, 0) for label in range(len(weights))]
    total = sum(numbers)
    if total < _LEAST_SAMPLES or not min(numbers) or max(numbers) < _IMBALANCED * min(numbers):
        return
    for weight, number in zip(weights, numbers, strict=True):
        share = number / total
        if abs(weight / sum(weights) - share) > 3 * (share * (1 - share) / total) ** 0.5 + 0.01:
            return
    most, least = numbers.index(max(numbers)), numbers.index(min(numbers))
    yield Finding(
        message="the loss weights classes by their frequency, not by its inverse",
        file=moments[0].file,
        line=_call_line(evidence, moments[0], "CrossEntropyLoss"),
        step=moments[0].step + 1,
        evidence=f"class {most} has weight {weights[most]:.3g} and is {numbers[most] / total:.0%} of the "
        f"{total} targets that were read; class {least} has weight {weights[least]:.3g} and is "
        f"{numbers[least] / total:.0%}",
    )


def _check_positives(evidence: Evidence, moments: list[Moment[PositivesWeighted]]) -> Iterator[Finding]:
    weights = moments[0].facts.weights
    if any(moment.facts.weights != weights for moment in moments):
        return
    total = sum(moment.facts.num_targets for moment in moments)
    positives = [
        sum(numbers) for numbers in zip(*(moment.facts.positives for moment in moments), strict=True)
    ]
    pairs = list(zip(weights, positives, strict=True))
    clear = [(weight, number) for weight, number in pairs if _LEAST_POSITIVES <= number < _RARE * total]
    if total < _LEAST_SAMPLES or 2 * len(clear) < len(pairs):
        return
    if not all(_is_inverted(weight, number, total) for weight, number in clear):
        return
    weight, number = min(clear, key=lambda pair: pair[1])
    yield Finding(
        message="pos_weight is positives / negatives, not negatives / positives",
        file=moments[0].file,
        line=_call_line(evidence, moments[0], "BCEWithLogitsLoss"),
        step=moments[0].step + 1,
        evidence=f"{number} of the {total} targets that were read are positive: positives / negatives is "
        f"{number / (total - number):.3g}, pos_weight is {weight:.3g}, expected about "
        f"{(total - number) / number:.3g}",
        fix="Set pos_weight to negatives / positives.",
    )


def _is_inverted(weight: float, positives: int, total: int) -> bool:
    """Whether a weight is the ratio of positives to negatives, and was not chosen by hand."""
    ratio = positives / (total - positives)
    is_by_hand = abs(100 * weight - round(100 * weight)) < 1e-4 and weight >= 0.05
    return not is_by_hand and weight < 1 and abs(weight - ratio) <= max(_NEAR, 2 / positives**0.5) * ratio


def _class_counts(evidence: Evidence, moments: list[Moment[ClassesWeighted]]) -> Counter[int]:
    """Return how many targets of each class were seen: in a loader's first epoch, or in the first steps."""
    best: Counter[int] = Counter()
    for moment in moments:
        best.update(moment.facts.counts)
    for loader in find_loaders(evidence):
        if loader.is_training and loader.samples:
            found: Counter[int] = Counter()
            for labels in loader.samples[0].labels:
                found.update({int(label): num for label, num in labels.counts.items()})
            best = found if sum(found.values()) > sum(best.values()) else best
    return best


def _call_line(
    evidence: Evidence,
    moment: Moment[ClassDraws]
    | Moment[SamplesUnweighted]
    | Moment[ClassesWeighted]
    | Moment[PositivesWeighted],
    name: str,
) -> int | None:
    source = evidence.source(moment.file)
    line = only_call(source.tree, name) if source is not None else None
    return line or moment.line
