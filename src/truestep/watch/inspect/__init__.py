"""Inspectors: what rules need to know beyond moments, read from the objects themselves as they go by.

Owns which inspectors there are. Each listens to the tape's events and notes moments; it changes nothing, and
reads values only at the steps that are looked at.
"""

from truestep.watch.inspect.data import (
    balance,
    growth,
    inputs,
    levels,
    overlaps,
    pairs,
    redraws,
    rows,
    samples,
    seeding,
    standard,
    stored,
    workers,
)
from truestep.watch.inspect.model import (
    averages,
    compiling,
    devices,
    direct,
    kept,
    modes,
    ranks,
    replicas,
    roster,
    shards,
    statistics,
)
from truestep.watch.inspect.probe import deep, factors, probes
from truestep.watch.inspect.training import (
    adversaries,
    arrivals,
    biases,
    by_hand,
    course,
    derivatives,
    drawn,
    exhausted,
    gradients,
    graphs,
    losses,
    masking,
    metrics,
    motion,
    padding,
    rates,
    schedules,
    signs,
    views,
    weighting,
)
from truestep.watch.script.tape import Tape

_INSPECTORS = (
    exhausted.watch,  # it reads the peak of the device's memory: before the others take any
    by_hand.watch,  # before those whom it tells of steps
    gradients.watch,
    graphs.watch,
    schedules.watch,
    direct.watch,
    modes.watch,
    motion.watch,
    adversaries.watch,
    probes.watch,
    deep.watch,
    factors.watch,
    roster.watch,
    kept.watch,
    averages.watch,
    statistics.watch,
    replicas.watch,
    ranks.watch,
    shards.watch,
    compiling.watch,
    devices.watch,
    inputs.watch,
    levels.watch,
    standard.watch,
    losses.watch,
    weighting.watch,
    signs.watch,
    masking.watch,
    padding.watch,
    derivatives.watch,
    drawn.watch,
    biases.watch,
    rates.watch,
    metrics.watch,
    views.watch,
    samples.watch,
    overlaps.watch,
    pairs.watch,
    stored.watch,
    balance.watch,
    redraws.watch,
    rows.watch,
    seeding.watch,
    workers.watch,
    arrivals.watch,
    course.watch,
    growth.watch,
)


def inspect_torch(tape: Tape) -> None:
    """Put all inspectors in place."""
    for watch in _INSPECTORS:
        tape.attempt(watch)
