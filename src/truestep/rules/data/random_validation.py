"""Validation data are augmented at random.

## What it finds
An evaluation loader whose samples differ when they are read again, while their labels stay the same. The
first samples of its dataset are read twice in a copy of the process.

## Why it matters
Random crops, flips and noise are for training. In validation they change the score although the weights are
the same: differences between epochs are partly luck, the best epoch is the luckiest, and the score is lower
than on the real data.

## How to fix
Give the validation dataset a separate transform without random parts. After `random_split`, both parts
share one dataset and therefore one transform.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.loaders import ObservedLoader, find_loaders, transform_line
from truestep.watch.evidence.facts.loading import SamplesRedrawn
from truestep.watch.evidence.facts.passes import BackwardPass

RULE = Meta(
    code="DATA06",
    severity="warning",
    needs=(SamplesRedrawn, BackwardPass),
    fix="Build the validation dataset with a transform without random parts.",
)
_LEAST_SAMPLES = 8


def is_observed(evidence: Evidence) -> bool:
    """Whether samples of an evaluation loader were read twice."""
    read = {moment.facts.loader for moment in evidence.of(SamplesRedrawn)}
    return any(loader.is_evaluation and loader.number in read for loader in find_loaders(evidence))


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find evaluation loaders whose samples differ when they are read again."""
    loaders = find_loaders(evidence)
    redrawn = [moment.facts for moment in evidence.of(SamplesRedrawn) if _differs(moment.facts)]
    read = {facts.loader: facts.num_read for facts in redrawn}
    for loader in loaders if any(loader.is_training for loader in loaders) else ():
        is_meant = loader.is_evaluation and loader.name_says(evidence) != "training"
        # Several passes over one state of the model are averages over augmentations, on purpose.
        is_again = len({moment.step for moment in loader.epochs}) == len(loader.epochs)
        if is_meant and is_again and loader.number in read:
            yield _finding(evidence, loader, read[loader.number])


def _differs(facts: SamplesRedrawn) -> bool:
    return facts.num_read >= _LEAST_SAMPLES == facts.num_changed


def _finding(evidence: Evidence, loader: ObservedLoader, num_read: int) -> Finding:
    is_own = loader.made is not None and loader.facts.is_direct
    moment = loader.made if is_own and loader.made is not None else loader.epochs[0]
    return Finding.at(
        moment,
        line=transform_line(evidence, loader) or moment.line,
        message="validation data are augmented at random: the same samples differ from epoch to epoch",
        evidence=f"the first {num_read} samples were read twice and came out different each time, with the "
        "same labels",
    )
