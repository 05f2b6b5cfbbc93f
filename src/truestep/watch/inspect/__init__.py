"""Inspectors: what rules need to know beyond moments, read from the objects themselves as they go by.

Owns which inspectors there are. Each listens to the tape's events and notes moments; it changes nothing, and
reads values only at the steps that are looked at.
"""

from truestep.watch.inspect.data import inputs, redraws, rows, samples, seeding, workers
from truestep.watch.inspect.model import compiling, devices, direct, kept, modes, replicas, roster
from truestep.watch.inspect.probe import probes
from truestep.watch.inspect.training import biases, gradients, graphs, losses, motion, schedules
from truestep.watch.script.tape import Tape

_INSPECTORS = (
    gradients.watch,
    graphs.watch,
    schedules.watch,
    direct.watch,
    modes.watch,
    motion.watch,
    probes.watch,
    roster.watch,
    kept.watch,
    replicas.watch,
    compiling.watch,
    devices.watch,
    inputs.watch,
    losses.watch,
    biases.watch,
    samples.watch,
    redraws.watch,
    rows.watch,
    seeding.watch,
    workers.watch,
)


def inspect_torch(tape: Tape) -> None:
    """Put all inspectors in place."""
    for watch in _INSPECTORS:
        tape.attempt(watch)
