"""Backward passes: `loss.backward()`, `torch.autograd.backward` and `torch.autograd.grad`.

Owns which of them are the user's own: those that run inside another one belong to it.
"""

import threading
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor

from truestep.watch.chain import Chain
from truestep.watch.leaves import among_ourselves, is_readable, is_transformed, outline
from truestep.watch.tape import Tape
from truestep.watch.wrap import Wraps, drop_frame

Function = Callable[..., Any]


def watch(tape: Tape, chain: Chain | None, wraps: Wraps) -> None:  # limits: private to this package
    """Observe both entry points of autograd; `Tensor.backward` calls the first."""
    wraps.put("backward", lambda run: _wrap(run, tape, chain, "backward"), torch.autograd)
    wraps.put("grad", lambda run: _wrap(run, tape, chain, "grad"), torch.autograd)


def _wrap(run: Function, tape: Tape, chain: Chain | None, how: str) -> Function:
    here, get_thread = tape.sites.here, threading.get_ident
    begins, ends = tape.listeners["backward_begins"], tape.listeners["backward_ends"]

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if (
            tape.is_in_backward
            or not tape.is_on
            or is_transformed()
            or not (get_thread() == tape.thread or tape.claim(trains=True))
        ):
            try:
                return run(*args, **kwargs)
            except BaseException as error:
                drop_frame(error)
                raise
        if tape.is_over:
            tape.end_script()
        losses: tuple[Tensor, ...] = ()
        if begins or chain is not None or tape.is_looked_at:
            losses = _losses(args, kwargs)
            if chain is not None and how == "backward":
                chain.take_losses(losses)
        # Known at the steps that are looked at.
        facts, value = _describe(losses) if tape.is_looked_at else ((None, None), None)
        key = ("backward", here(), how, *facts)
        if begins:
            tape.backward_site = key[1]
            tape.tell("backward_begins", losses, how)
        was_inside = tape.is_inside
        tape.is_in_backward = tape.is_inside = True
        begun = perf_counter_ns()
        try:
            result = run(*args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise
        finally:
            tape.is_in_backward = False
            tape.is_inside = was_inside
        tape.mark(key, begun, value=value)
        if ends:
            tape.tell("backward_ends", losses, how)
        return result

    return wrapper


def _losses(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
    """Return what the pass begins at; an iterator is left to its receiver."""
    given = args[0] if args else kwargs.get("tensors", kwargs.get("outputs"))
    listed = given if isinstance(given, list | tuple) else (given,)
    return tuple(item for item in listed if is_readable(item))


def _describe(losses: tuple[Tensor, ...]) -> tuple[tuple[Any, Any], float | None]:
    """Return shapes and the last operation, and the value if it is one."""
    with among_ourselves():
        node = losses[0].grad_fn if losses else None
        return (outline(losses), None if node is None else type(node).__name__), _value(losses)


def _value(losses: tuple[Tensor, ...]) -> float | None:
    """Read a loss where it costs no waiting for a device."""
    if len(losses) != 1 or losses[0].numel() != 1 or losses[0].device.type != "cpu":
        return None
    if type(losses[0]) is not Tensor or losses[0].dtype.is_complex or losses[0].is_nested:
        return None
    return float(losses[0].item())
