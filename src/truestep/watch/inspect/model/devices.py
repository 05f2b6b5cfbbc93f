"""What happens between host and accelerator: waiting for values, and copies.

Owns those calls of a tensor. Put in place once the script has started an accelerator: most builds of torch
know one, also where there is none. A tensor on the host costs one look.
"""

from time import perf_counter_ns
from typing import Any

import torch

from truestep.base.device import module_in_use
from truestep.watch.evidence.facts.surroundings import CopiedToDevice, HostWaited
from truestep.watch.hooks.table import WINDOW, Hook, Observation, calling_module, put
from truestep.watch.script.leaves import among_ourselves, is_transformed
from truestep.watch.script.tape import Tape


def watch(tape: Tape) -> None:
    """Observe `item`, `tolist`, `cpu`, `to` and `cuda` of tensors."""
    if torch.accelerator.current_accelerator() is not None:
        tape.listen(_Start(tape), "epoch", "forward_begins")


class _Start:
    """Waits until the script uses its accelerator. Asking whether there is one would start it."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def epoch(self, *_: Any) -> None:
        """A loader begins: models have been moved by now."""
        if module_in_use() is None:
            return
        tape = self._tape
        tape.ignore(self.epoch, self.forward_begins)
        names = ("item", "tolist", "cpu", "to", "cuda")
        hooks = [Hook(f"torch.Tensor.{name}", _Moves.observe, given=(name,), when=WINDOW) for name in names]
        put(tape, hooks, _Moves(tape))

    def forward_begins(self, *_: Any) -> None:
        """A script may have no loader."""
        self.epoch()


_PLAIN = (torch.Tensor, torch.nn.Parameter)


class _Moves:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def observe(self, name: str, tensor: torch.Tensor, /, *_: Any, **__: Any) -> Observation:
        """Observe what may wait for a device, or copy to it."""
        # Asking a subclass where it lies would call its own code.
        if type(tensor) not in _PLAIN or is_transformed() or torch.compiler.is_compiling():
            return
        if calling_module().startswith("truestep.watch."):  # what we read ourselves is not the script's
            return
        with among_ourselves():
            was_there, is_pinned = not tensor.is_cpu, None
            if not was_there and name in ("to", "cuda"):
                is_pinned = tensor.is_pinned()
        begun = perf_counter_ns()
        result = yield
        is_there, site = not getattr(result, "is_cpu", True), self._tape.sites.here
        if was_there and not is_there:
            self._tape.mark(HostWaited(name), site(3), begun)
        elif is_pinned is not None and is_there:
            self._tape.mark(CopiedToDevice(name, is_pinned), site(3), begun)
