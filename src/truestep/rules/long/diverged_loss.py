"""The loss ends far above where it began.

## What it finds
A cross entropy that fell at first and, in the last tenth of at least 320 steps, is far higher than it was at
the start, or infinite or NaN after it had risen that high. In a script with one optimizer and one backward
pass.

## Why it matters
The model is worse than before training. Nothing fails, so hours can pass before somebody looks.

## How to fix
Lower the learning rate or warm it up, and clip gradients. If the loss rises from one step to the next, look
at the batch of that step.
"""

from collections.abc import Iterator
from math import inf
from statistics import median

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.analysis.losses import find_levels, has_one_loss
from truestep.watch.evidence.facts.optimizing import LossLevel
from truestep.watch.evidence.facts.passes import BackwardPass

RULE = Meta(
    code="LONG02",
    severity="warning",
    needs=(LossLevel,),
    fix="Lower the learning rate or warm it up, and clip gradients.",
    is_preview=True,
)
_MIN_LEVELS, _NUM_PARTS = 20, 5
_MIN_LAST, _LAST_PART = 3, 10
"""How much of the run must be higher than the start: the last tenth, and so many values at least."""
_FAR = 1.0
"""How much higher than at the start, in units of how far the loss had fallen."""
_OPERATIONS = ("NllLoss", "CrossEntropy", "BinaryCrossEntropy")


def is_observed(evidence: Evidence) -> bool:
    """Whether the loss was read often enough."""
    return len(find_levels(evidence)) >= _MIN_LEVELS


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find a loss that fell and then rose above its start."""
    names = {moment.facts.operation for moment in evidence.of(BackwardPass) if moment.facts.operation}
    is_known = bool(names) and all(name.startswith(_OPERATIONS) for name in names)
    levels = find_levels(evidence)
    if not has_one_loss(evidence) or not is_known or len(levels) < _MIN_LEVELS:
        return
    losses = [loss for _, loss in levels]
    size = len(losses) // _NUM_PARTS
    parts = [median(losses[at * size : (at + 1) * size]) for at in range(_NUM_PARTS)]
    start, best = max(parts[0], *losses[:2]), min(parts[:-1])
    # A loss that is suddenly not finite has not diverged: it must have been too high before that.
    highest = max((loss for loss in losses[losses.index(min(losses)) :] if loss < inf), default=0.0)
    last = sorted(losses[-max(_MIN_LAST, len(losses) // _LAST_PART) :])
    is_higher = last[len(last) // 4] > start and median(last) - best > (1 + _FAR) * (start - best)
    if best < start < highest and is_higher:
        end = f"ends at {median(last):.4g} after {levels[-1][0].step + 1} steps"
        if median(last) == inf:
            end = f"rises to {highest:.4g} before it is infinite or NaN"
        yield Finding.at(
            levels[-1][0],
            "the loss diverges",
            evidence=f"it begins at {start:.4g}, falls to {best:.4g} and {end}",
        )
