"""Torch has been imported: puts in place what observes it, and what the plan changes in it.

Owns the order, and the torch fact.
"""

import torch

from truestep.watch.control import freeze, vary
from truestep.watch.digests.chain import Chain
from truestep.watch.evidence.facts.surroundings import TorchImported
from truestep.watch.hooks import forward, steps
from truestep.watch.hooks.events import put_events
from truestep.watch.operations import light
from truestep.watch.script import refs
from truestep.watch.script.nested_tensors import no_user_overrides
from truestep.watch.script.tape import Tape


def watch_torch(tape: Tape) -> None:
    """Observe torch's entry points as the tape's plan says."""
    tape.no_user_overrides = no_user_overrides
    tape.chain = Chain(tape) if tape.plan.digests else None
    freeze.freeze_torch(tape)
    tape.attempt(refs.watch)
    tape.attempt(steps.watch)
    put_events(tape, "torch")
    if tape.chain is not None:
        put_events(tape, "numpy:digests")
    forward.allow_in_compiled_code()
    if tape.window.may_close:
        forward.watch_gradient_mode(tape)
    vary.vary_torch(tape)
    if tape.plan.inspect:
        from truestep.watch.inspect import inspect_torch  # noqa: PLC0415 - a lot to import; verify does without

        inspect_torch(tape)
    tape.attempt(light.watch)
    tape.note(TorchImported(torch.__version__, torch.get_num_threads()))
