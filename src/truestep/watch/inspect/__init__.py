"""Inspectors: what rules need to know beyond moments, read from the objects themselves as they go by.

Owns which inspectors there are. Each listens to the tape's events and notes moments; it changes nothing, and
reads values only at the steps that are looked at.
"""

from truestep.watch.inspect.data import (
    balance,
    inputs,
    pairs,
    rereads,
    rows,
    samples,
    seeding,
    workers,
)
from truestep.watch.inspect.model import (
    kept,
    modes,
    replicas,
    roster,
)
from truestep.watch.inspect.probe import probes
from truestep.watch.inspect.training import (
    by_hand,
    gradients,
    graphs,
    loss_history,
    losses,
    metrics,
    motion,
    schedules,
)
from truestep.watch.script.tape import Tape

_INSPECTORS = (
    by_hand.watch,  # before those whom it tells of steps
    gradients.watch,
    graphs.watch,
    schedules.watch,
    modes.watch,
    motion.watch,
    probes.watch,
    roster.watch,
    kept.watch,
    replicas.watch,
    inputs.watch,
    losses.watch,
    metrics.watch,
    samples.watch,
    pairs.watch,
    rereads.watch,
    balance.watch,
    rows.watch,
    seeding.watch,
    workers.watch,
    loss_history.watch,
)


def inspect_torch(tape: Tape) -> None:
    """Put all inspectors in place."""
    for watch in _INSPECTORS:
        tape.attempt(watch)
