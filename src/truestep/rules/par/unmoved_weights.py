"""A weight has a gradient, but the optimizer step does not change it.

## What it finds
Parameters whose gradient is not zero and whose values are bit-for-bit identical before and after each step
that was checked. The learning rate is zero, the step is too small for the number format, or a custom
optimizer changes a copy.

## Why it matters
These weights learn nothing. In bfloat16 a weight has 8 bits: an update below 1/256 of the weight is rounded
away, so small learning rates do nothing at all.

## How to fix
Keep weights in float32 and compute in bfloat16 with `torch.autocast`. Check the optimizer's actual learning
rate. In a custom optimizer, change parameters in place: `p.add_(update)`, not `p = p + update`.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.roster import few, where_made
from truestep.watch import Moment
from truestep.watch.evidence.facts.optimizing import (
    OptimizerStep,
    SchedulerMade,
    UnmovedParameter,
    WeightsUnmoved,
)
from truestep.watch.evidence.facts.structure import ParametersListed
from truestep.watch.evidence.kinds import Place

RULE = Meta(
    code="PAR07",
    severity="error",
    needs=(OptimizerStep, ParametersListed),
    fix="Use a learning rate and a number format in which the step can change the weights.",
    caused_by=("LOOP09",),
)
_MIN_STEPS = 3
_MIN_GRADIENT = 1e-5
_MIN_RUN = 16


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find weights that steps leave as they are."""
    for moment in evidence.of(WeightsUnmoved):
        stills = [still for still in moment.facts.parameters if still.gradient >= _MIN_GRADIENT]
        rated = [still for still in stills if still.num_rated >= _MIN_STEPS]
        if rated and _is_rising(evidence, moment.facts.optimizer):
            continue  # the steps looked at were the smallest
        if rated:
            yield _report(moment, rated, f"learning rate {rated[0].rate:.3g}")
        elif stills and not moment.facts.num_moved and _is_rate_zero(evidence, moment.facts.optimizer):
            yield _report(moment, stills, "the learning rate is 0 at each step", _origin(evidence, moment))


def _is_rising(evidence: Evidence, optimizer: int) -> bool:
    """Whether the learning rate was raised until shortly before the end."""
    steps = [moment for moment in evidence.of(OptimizerStep) if moment.facts.optimizer == optimizer]
    changes = [(place, max(step.facts.rates)) for place, step in enumerate(steps) if step.facts.rates]
    if not changes:
        return False
    rates = [rate for _, rate in changes]
    is_last = len(steps) - changes[-1][0] < _MIN_RUN
    return is_last and rates[-1] > rates[0] and rates[-1] >= max(rates)


def _origin(evidence: Evidence, moment: Moment[WeightsUnmoved]) -> Place | None:
    """Return where the rate is given: where the optimizer is created, unless a schedule makes it 0."""
    number = moment.facts.optimizer
    made = [item.facts for item in evidence.of(SchedulerMade) if item.facts.optimizer == number]
    return None if any(map(_may_be_cause, made)) else where_made(evidence, number)


def _may_be_cause(scheduler: SchedulerMade) -> bool:
    """Whether the rate could be 0 because of it: it was not 0 before, or that is not known."""
    rates = scheduler.settings.base_rates
    return any(rates) or (not rates and scheduler.class_name != "ReduceLROnPlateau")


def _is_rate_zero(evidence: Evidence, optimizer: int) -> bool:
    steps = [moment for moment in evidence.of(OptimizerStep) if moment.facts.optimizer == optimizer]
    rates = [rate for moment in steps for rate in moment.facts.rates or ()]
    return bool(rates) and not any(rates)


def _report(
    moment: Moment[WeightsUnmoved], stills: list[UnmovedParameter], why: str, place: Place | None = None
) -> Finding:
    first = stills[0]
    return Finding.at(
        place or moment,
        f"{len(stills)} parameters have gradients, but the step does not change them"
        if len(stills) > 1
        else f"{first.name} has a gradient, but the step does not change it",
        step=first.first_step + 1,
        evidence=f"{few([still.name for still in stills])}: identical before and after {first.num_steps} "
        f"steps; the first is {first.dtype} of shape {first.shape}, gradient up to {first.gradient:.3g}, "
        f"{why}, weight {first.weight:.3g}",
    )
