"""Torch has been imported: puts the observers of all families in place.

Owns which families a plan turns on, and the torch fact. Each family has a module of its own.
"""

import torch

from truestep.watch.control import freeze, vary
from truestep.watch.digests.chain import Chain
from truestep.watch.evidence.facts.surroundings import TorchImported
from truestep.watch.hooks import backward, data, files, forward, group, optimizer, scheduler, seeds, setup
from truestep.watch.hooks.table import put_family
from truestep.watch.operations import light
from truestep.watch.script import refs
from truestep.watch.script.leaves import among_ourselves
from truestep.watch.script.tape import Tape

_FAMILIES = {
    "data": (data.HOOKS, data.Loaders),
    "forward": (forward.HOOKS, forward.Forward),
    "backward": (backward.HOOKS, backward.Backward),
    "scheduler": (scheduler.HOOKS, scheduler.Schedulers),
    "files": (files.HOOKS, files.Files),
    "seeds": (seeds.TORCH, seeds.Seeds),
    "group": (group.HOOKS, group.Group),
    "setup": (setup.HOOKS, setup.Setup),
}


def watch_torch(tape: Tape) -> None:
    """Observe torch's entry points as the tape's plan says."""
    tape.connect(among_ourselves=among_ourselves, chain=Chain(tape) if tape.plan.digests else None)
    freeze.freeze_torch(tape)
    tape.attempt(refs.watch)
    if tape.is_part:
        tape.attempt(optimizer.watch_all_steps)
    else:
        put_family(tape, optimizer.MADE, optimizer.Steps)
    put_family(tape, optimizer.GRADIENTS, optimizer.Gradients)
    for name, (family_hooks, family) in _FAMILIES.items():
        if tape.asks_for(name):
            put_family(tape, family_hooks, family)
    if tape.chain is not None and tape.asks_for("files"):
        put_family(tape, files.NUMPY, files.Files)
        put_family(tape, files.COPIES, files.Files)
    forward.allow_in_compiled_code()
    if tape.window.may_close:
        forward.watch_gradient_mode(tape)
    vary.vary_torch(tape)
    if tape.plan.inspect:
        from truestep.watch.inspect import inspect_torch  # noqa: PLC0415 - a lot to import; verify does without

        inspect_torch(tape)
    tape.attempt(light.watch)
    tape.note(TorchImported(torch.__version__, torch.get_num_threads()))
