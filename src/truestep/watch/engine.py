"""Torch has been imported: puts the observers of all families in place.

Owns which families a plan turns on, and the torch fact. Each family has a module of its own.
"""

import torch

from truestep.watch import (
    backward,
    data,
    files,
    forward,
    group,
    hold,
    light,
    optimizer,
    scheduler,
    seeds,
    setup,
    vary,
)
from truestep.watch.chain import Chain
from truestep.watch.tape import Tape
from truestep.watch.wrap import Wraps


def watch_torch(tape: Tape) -> Wraps:
    """Observe torch's entry points as the tape's plan says."""
    plan = tape.plan
    chain = Chain(tape) if plan.digests else None
    wraps = Wraps()
    hold.hold_torch(tape, wraps)
    optimizer.watch(tape, chain, wraps)
    if "data" in plan.families or chain:
        data.watch(tape, chain, wraps)
    if "forward" in plan.families or chain:
        forward.watch(tape, chain, wraps)
    if "backward" in plan.families or chain:
        backward.watch(tape, chain, wraps)
    if "scheduler" in plan.families:
        scheduler.watch(tape, wraps)
    if "files" in plan.families:
        files.watch(tape, wraps)
    if "seeds" in plan.families:
        seeds.watch_torch(tape, wraps)
    if "group" in plan.families and torch.distributed.is_available():
        group.watch(tape, wraps)
    if "setup" in plan.families:
        setup.watch(tape, wraps)
    vary.vary_torch(tape, wraps)
    if plan.inspect:
        from truestep.watch.inspect import inspect_torch  # noqa: PLC0415 - a lot to import; verify does without

        inspect_torch(tape, wraps)
    light.watch(tape, wraps)
    tape.note("torch", torch.__version__, torch.get_num_threads())
    return wraps
