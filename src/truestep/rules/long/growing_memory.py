"""The memory of the process grows with every step.

## What it finds
Memory that grows by about the same amount in each quarter of the run after the first, and by at least 64 MB
in its second half.

## Why it matters
A run that grows by a megabyte per step ends after a night, killed by the system and without a message.

## How to fix
Look for a list or dictionary that gets something in each step: outputs, batches, metrics as tensors. Keep
numbers (`loss.item()`), or only the last few. A replay buffer that fills up to its size is fine.
"""

from collections.abc import Iterator
from itertools import pairwise

from truestep.rules import Evidence, Finding, Meta
from truestep.watch.evidence.facts.course import CoursePoint

RULE = Meta(
    code="LONG03",
    severity="info",
    needs=(CoursePoint,),
    caused_by=("LOOP13", "LOOP15"),
    fix="Keep numbers instead of tensors, or only the last few.",
    is_preview=True,
)
_MIN_POINTS = 12
_MIN_BYTES = 64 << 20
_EVEN = 0.5
"""The least growth of a quarter, as a share of the largest one."""


def is_observed(evidence: Evidence) -> bool:
    """Whether memory was read often enough."""
    return len(evidence.of(CoursePoint)) >= _MIN_POINTS


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find steady growth."""
    points = evidence.of(CoursePoint)
    if len(points) < _MIN_POINTS:
        return
    first, last = points[0].facts.num_steps, points[-1].facts.num_steps
    marks = [_memory_at(evidence, first + (last - first) * place // 4) for place in range(1, 5)]
    rises = [later - earlier for earlier, later in pairwise(marks)]
    if marks[3] - marks[1] >= _MIN_BYTES and min(rises) >= _EVEN * max(rises):
        each = (marks[3] - marks[0]) / (0.75 * (last - first))
        yield Finding.at(
            points[-1],
            "memory grows with every step",
            step=last,
            evidence=f"{marks[0] / 1e6:,.0f} MB after a quarter of {last} steps, {marks[1] / 1e6:,.0f} MB "
            f"after half and {marks[3] / 1e6:,.0f} MB at the end",
            cost=f"{each / 1e6:.2g} MB per step",
        )


def _memory_at(evidence: Evidence, step: int) -> int:
    return next(item.facts.memory_bytes for item in evidence.of(CoursePoint) if item.facts.num_steps >= step)
