"""Backward passes: `loss.backward()`, `torch.autograd.backward` and `torch.autograd.grad`.

Owns which of them are the user's own: those that run inside another one belong to it.
"""

from time import perf_counter_ns
from typing import Any

from torch import Tensor

from truestep.watch.evidence.facts.passes import BackwardPass
from truestep.watch.hooks.table import Observation
from truestep.watch.script.host import on_host
from truestep.watch.script.leaves import among_ourselves, is_readable, is_transformed, outline
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
        # Known at the steps that are looked at.
        facts = BackwardPass(how, *(_describe(losses) if tape.is_looked_at else (None, None, None)))
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
        tape.mark(facts, site, begun)
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
    with among_ourselves():
        return loss.item() if loss.is_cpu and loss.numel() == 1 and not loss.is_complex() else None


def _describe(losses: tuple[Tensor, ...]) -> tuple[Any, str | None, float | None]:
    """Return shapes and the last operation, and the value if it is one."""
    with among_ourselves():
        node = losses[0].grad_fn if losses else None
        return outline(losses), None if node is None else type(node).__name__, _value(losses)


def _value(losses: tuple[Tensor, ...]) -> float | None:
    """Read a loss; only in steps that are looked at, because that may wait for a device."""
    if len(losses) != 1 or losses[0].numel() != 1 or losses[0].is_meta:
        return None
    if type(losses[0]) is not Tensor or losses[0].dtype.is_complex or losses[0].is_nested:
        return None
    return float(on_host(losses[0]).item())
