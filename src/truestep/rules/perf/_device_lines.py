"""Lines that wait for a device, or copy to it, in most steps of training: what they cost.

Owns what counts as most steps and as worth a finding. What is said of it is left to the rules.
"""

from collections.abc import Iterator, Sequence

from truestep.rules import Evidence
from truestep.rules.kit.grouping import by_line
from truestep.watch import Moment
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.moment import F

_LEAST_STEPS, _LEAST_SHARE, _LEAST_OF_STEPS = 8, 0.03, 0.5


def costly_lines(
    evidence: Evidence, moments: Sequence[Moment[F]]
) -> Iterator[tuple[list[Moment[F]], str, str]]:
    """Yield moments of one line that take much of the time in most steps, how many steps, and the cost."""
    steps = evidence.of(OptimizerStep)
    if len(steps) < _LEAST_STEPS:
        return
    passed_s = steps[-1].at_s - steps[0].at_s
    lines = by_line(moment for moment in moments if steps[0].at_s <= moment.at_s <= steps[-1].at_s)
    for found in lines.values():
        num_steps = len({moment.step for moment in found})
        took_s = sum(moment.took_s for moment in found)
        if passed_s and num_steps >= _LEAST_OF_STEPS * len(steps) and took_s >= _LEAST_SHARE * passed_s:
            cost = f"{took_s:.2f} s, {took_s / passed_s:.0%} of training time"
            yield found, f"{num_steps} of {len(steps)} steps", cost
