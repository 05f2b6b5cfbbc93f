"""The loss in the course of a run, as some rules read it."""

from math import inf, isfinite

from truestep.rules import Evidence
from truestep.watch import Moment
from truestep.watch.evidence.facts.optimizing import LossLevel, OptimizerStep
from truestep.watch.evidence.facts.passes import BackwardPass

_EVERY = 16


def find_levels(evidence: Evidence) -> list[tuple[Moment[LossLevel], float]]:
    """Return the loss at some steps, evenly spread: the first that was read of every few.

    A loss that is not finite is infinite.
    """
    found: dict[int, Moment[LossLevel]] = {}
    for moment in evidence.of(LossLevel):
        found.setdefault(moment.step // _EVERY, moment)
    levels = [(found[place], found[place].facts.loss) for place in sorted(found)]
    return [(moment, loss if isinstance(loss, float) and isfinite(loss) else inf) for moment, loss in levels]


def has_one_loss(evidence: Evidence) -> bool:
    """Whether there is one optimizer, and one line that runs the backward pass."""
    optimizers = {moment.facts.optimizer for moment in evidence.of(OptimizerStep)}
    sites = {(moment.file, moment.line) for moment in evidence.of(BackwardPass)}
    return len(optimizers) == 1 and len(sites) == 1
