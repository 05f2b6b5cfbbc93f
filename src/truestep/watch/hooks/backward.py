"""Backward passes: `loss.backward()`, `torch.autograd.backward` and `torch.autograd.grad`.

Owns which of them are the user's own: those that run inside another one belong to it.
"""

from time import perf_counter_ns
from typing import Any

from torch import Tensor

from truestep.watch.evidence.facts.passes import BackwardPass
from truestep.watch.hooks.table import Observation
from truestep.watch.script.nested_tensors import is_readable, is_transformed, no_user_overrides
from truestep.watch.script.tape import Tape


class Backward:
    """Both entry points of autograd; `Tensor.backward` calls the first."""

    def __init__(self, tape: Tape) -> None:
        self._tape, self._under_way = tape, tape.under_way
        self._chain = tape.chain

    def observe(self, how: str, /, *args: Any, **kwargs: Any) -> Observation:
        """Observe one pass, unless it is a part of another one."""
        tape, under_way, chain = self._tape, self._under_way, self._chain
        if under_way.is_in_backward or is_transformed():
            return
        tape.end_if_over()
        losses = losses_of(args, kwargs)
        if chain is not None and how == "backward":
            chain.take_losses(losses)
        under_way.backward_site = site = tape.sites.here(3)
        if tape.plan.inspect:
            under_way.loss = _read_at_once(losses)
        tape.emit("backward_begins", losses, how)
        under_way.begin_backward()
        begun = perf_counter_ns()
        try:
            yield
        finally:
            under_way.end_backward()
        tape.mark(BackwardPass(how), site, begun)
        tape.emit("backward_ends", losses, how)


def losses_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
    """Return what the pass begins at; an iterator is left to its receiver."""
    given = args[0] if args else kwargs.get("tensors", kwargs.get("outputs"))
    if type(given) is Tensor:
        return (given,)
    listed = given if isinstance(given, list | tuple) else (given,)
    return tuple(item for item in listed if is_readable(item))


def _read_at_once(losses: tuple[Tensor, ...]) -> float | None:
    """Read a loss for which the script need not wait."""
    if len(losses) != 1 or type(losses[0]) is not Tensor:
        return None
    loss = losses[0]
    with no_user_overrides():
        return loss.item() if loss.is_cpu and loss.numel() == 1 and not loss.is_complex() else None
