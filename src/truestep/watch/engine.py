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
    refs,
    scheduler,
    seeds,
    setup,
    vary,
)
from truestep.watch.chain import Chain
from truestep.watch.leaves import among_ourselves
from truestep.watch.tape import Tape
from truestep.watch.wrap import Wraps


def watch_torch(tape: Tape) -> Wraps:
    """Observe torch's entry points as the tape's plan says."""
    plan = tape.plan
    chain = Chain(tape) if plan.digests else None
    wraps = Wraps(tape)
    tape.among_ourselves = among_ourselves  # type: ignore[method-assign]
    hold.hold_torch(tape, Wraps())
    tape.attempt(refs.watch)
    tape.attempt(optimizer.watch, chain, wraps)
    for name, watch in (("data", data.watch), ("forward", forward.watch), ("backward", backward.watch)):
        if name in plan.families or chain:
            tape.attempt(watch, chain, wraps)
    others = {
        "scheduler": scheduler.watch,
        "files": files.watch,
        "seeds": seeds.watch_torch,
        "group": group.watch,
        "setup": setup.watch,
    }
    for name, observe in others.items():
        if name in plan.families:
            tape.attempt(observe, wraps)
    vary.vary_torch(tape, Wraps())
    if plan.inspect:
        from truestep.watch.inspect import inspect_torch  # noqa: PLC0415 - a lot to import; verify does without

        inspect_torch(tape, wraps)
    tape.attempt(light.watch, wraps)
    tape.note("torch", torch.__version__, torch.get_num_threads())
    return wraps
