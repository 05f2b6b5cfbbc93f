"""The input contains the target.

## What it finds
A last column of a table, or a last step of a sequence, that is equal to the target in every sample that was
read. Usually the target column was not removed from the features, or a window of a series ends one step too
late.

## Why it matters
The model copies the answer. Its score is perfect in training and in validation, and worthless where the
answer is not known yet.

## How to fix
Remove the target from the input: `x = table[:, :-1]`, or end the window before the value that is predicted,
`x = series[i : i + length]` and `y = series[i + length]`.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.watch.evidence.facts.loading import TargetInInput

RULE = Meta(
    code="DATA10",
    severity="error",
    needs=(TargetInInput,),
    fix="Remove the target from the input: leave its column out, or end the window one step earlier.",
)
_LEAST_VALUES, _MOST_EQUAL = 8, 2


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find inputs that end with their target."""
    for moment in evidence.of(TargetInInput):
        facts = moment.facts
        width = 1
        for extent in facts.shape[1:]:
            width *= extent
        num_values = facts.shape[0] * width
        first_of_last = num_values - width if len(facts.shape) > 1 else num_values - 1
        last = [column for column in facts.columns if column >= first_of_last]
        is_image = len(facts.shape) > 2
        if is_image or not last or len(facts.columns) > _MOST_EQUAL or facts.num_values < _LEAST_VALUES:
            continue
        where = f"column {last[0]}" if len(facts.shape) == 1 else f"step {facts.shape[0] - 1}"
        yield Finding.at(
            moment,
            "the input contains the target",
            evidence=f"{where} of the input, the last of {facts.shape[0]}, was equal to the target in all "
            f"{facts.num_samples} samples that were read, with {facts.num_values} or more different values",
        )
