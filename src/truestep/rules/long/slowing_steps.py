"""Steps take longer and longer.

## What it finds
Steps that need at least 1.5 times as much processor time in the last eighth of the run as in the second, and
more in each eighth than in the one before.

## Why it matters
A run that slows down by one percent in a hundred steps takes many times as long as planned.

## How to fix
Look for work that grows with the number of steps: a list that is searched or averaged in each step, a plot or
file that is written again with all values, memory that grows until the system swaps.
"""

from collections.abc import Iterator
from itertools import pairwise

from truestep.rules import Evidence, Finding, Meta
from truestep.watch.evidence.facts.course import CoursePoint

RULE = Meta(
    code="LONG05",
    severity="info",
    needs=(CoursePoint,),
    caused_by=("LOOP13",),
    fix="Look for work that grows with the number of steps, such as a list that each step goes through.",
    is_preview=True,
)
_NUM_PARTS, _MIN_POINTS = 8, 17
_MIN_RATIO, _MIN_STEP_S, _NEARLY, _DIP = 1.5, 0.001, 0.97, 0.05
"""The last is by how much a part may be quicker than the one before, as a share of the last part: noise."""


def is_observed(evidence: Evidence) -> bool:
    """Whether enough steps could be timed."""
    return len(evidence.of(CoursePoint)) >= _MIN_POINTS


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find steps whose time grows all the while."""
    points = evidence.of(CoursePoint)
    if len(points) < _MIN_POINTS:
        return
    each = [
        (later.facts.used_s - item.facts.used_s) / (later.facts.num_steps - item.facts.num_steps)
        for item, later in pairwise(points)
    ]
    size = len(each) // _NUM_PARTS
    # The quickest of a part: what is done now and then, as evaluation, makes single ones slow.
    parts = [min(each[at * size : (at + 1) * size]) for at in range(_NUM_PARTS)]
    dip_s = _DIP * parts[-1]
    rises = all(later > _NEARLY * earlier - dip_s for earlier, later in pairwise(parts[1:]))
    if rises and parts[-1] > _MIN_RATIO * parts[1] and parts[-1] > _MIN_STEP_S:
        yield Finding.at(
            points[-1],
            "steps take longer and longer",
            step=points[-1].facts.num_steps,
            evidence=f"processor time of a step: {1000 * parts[1]:.3g} ms in the second eighth of the run, "
            f"{1000 * parts[4]:.3g} ms in the fifth and {1000 * parts[-1]:.3g} ms in the last",
        )
