"""Padding counts in the loss.

## What it finds
A cross entropy over sequences that scores padding: the model's input rows end in runs of one token or of
zeros, of different lengths, and the loss scores a target at those positions.

## Why it matters
Padding is easy to predict. It dilutes the loss by a share that differs from batch to batch, so the reported
number means little, and the model spends capacity on padding.

## How to fix
Pass `ignore_index`, or mask the loss, and use a separate padding token.
"""

import re
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.flow import OperationGraph
from truestep.rules.kit.grouping import by_line
from truestep.rules.loss._labels import labels_line
from truestep.watch import Moment
from truestep.watch.evidence.facts.passes import ClassesScored

RULE = Meta(
    code="LOSS07",
    severity="warning",
    is_observed=lambda evidence: any(moment.facts.shifts for moment in evidence.of(ClassesScored)),
    needs=(ClassesScored,),
    fix="Ignore padding with ignore_index or a mask, and use a token that is only padding.",
)
_MIN_SHARE = 0.03
_MASKING = ("mul", "masked", "where", "index", "dot", "mm", "bmm", "select")
_RAGGED = re.compile(r"mask|lengths|(?<!\w)pad(?!ding\s*=)|_pad", re.IGNORECASE)
_PAD = re.compile("pad", re.IGNORECASE)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find losses that score padding."""
    flow = evidence.flow
    seen = by_line(moment for moment in evidence.of(ClassesScored) if moment.facts.shifts)
    for moments in seen.values():
        if _is_spoken_of(evidence, moments[0]):
            yield from _scored(evidence, flow, moments=moments)


def _is_spoken_of(evidence: Evidence, moment: Moment[ClassesScored]) -> bool:
    """Whether the script speaks of padding: frames of zeros may be silence."""
    padding = moment.facts.padding
    word = _PAD if padding is None or padding.token >= 0 else _RAGGED
    return any(word.search(source.text) for source in evidence.sources)


def _scored(
    evidence: Evidence, flow: OperationGraph, *, moments: list[Moment[ClassesScored]]
) -> Iterator[Finding]:
    for moment in moments:
        found = moment.facts.padding
        if found is None or found.num_padding < _MIN_SHARE * found.num_scored:
            continue
        if _is_masked(flow, moment.facts):
            continue
        what = f"token {found.token}" if found.token >= 0 else "zeros"
        yield Finding.at(
            moment,
            "padding counts in the loss",
            line=labels_line(evidence, moment),
            evidence=f"{found.num_padding} of {found.num_scored} scored targets "
            f"({found.num_padding / found.num_scored:.0%}) are {found.label} where the model's input is "
            f"padding, {what}, in runs of {found.shortest} to {found.longest}; ignore_index is "
            f"{moment.facts.ignored}",
        )


def _is_masked(flow: OperationGraph, facts: ClassesScored) -> bool:
    """Whether the losses of single places are weighted or picked before they are summed."""
    operation = flow.at(facts.operation_index)
    if facts.reduction != "none" or operation is None:
        return False
    users = [user.kind for user in flow.users(operation)]
    return not users or any(name.startswith(_MASKING) for name in users)
