"""Arguments of somebody's calls, edited on their way: how knobs reach loaders, optimizers and switches.

Owns the wrapping. Which arguments, and what they become, is each knob's own.
"""

import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from truestep.watch.tape import Tape
from truestep.watch.wrap import Wraps, drop_frame

Function = Callable[..., Any]
Change = Callable[[dict[str, Any]], None]
"""Edits arguments by name, in place; those that the caller left out are absent."""

_OURS = "truestep.data"
"""Our own loaders build DataLoaders and switch threads for a moment: that is not the script's doing."""


def rewrite(owner: Any, name: str, *, change: Change) -> None:
    """Let `change` edit the arguments of each call of `owner.name`, unless our own loaders make it."""
    Wraps().put(name, lambda act: _wrap(act, change), owner)


def _wrap(act: Function, change: Change) -> Function:
    signature = inspect.signature(act)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError:
            given = None  # a wrong call: what is called says so itself
        if given is not None and not _caller().startswith(_OURS):
            change(given.arguments)
            args, kwargs = given.args, given.kwargs
        try:
            return act(*args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise

    return wrapper


def hold(owner: Any, name: str, *, value: Any) -> None:
    """Call a switch with a value now, and with the same value wherever the script turns it again."""
    Wraps().put(name, lambda act: _fix(act, value), owner)
    getattr(owner, name)(value)


def _fix(act: Function, value: Any) -> Function:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        # torch turns switches for itself and back: in loader workers, while it compiles.
        is_script = not _caller().startswith(("torch.", _OURS))
        try:
            return act(value) if is_script else act(*args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise

    return wrapper


def _caller() -> str:
    """Return the module that called the wrapper."""
    return str(sys._getframe(2).f_globals.get("__name__") or "")


def edit_loaders(tape: Tape, change: Change) -> None:
    """Let `change` edit the arguments of each DataLoader that has, or will have, workers."""
    planned = tape.plan.workers

    def change_if_any(arguments: dict[str, Any]) -> None:
        num_workers = arguments.get("num_workers", 0) if planned is None else planned
        if num_workers:
            change(arguments)

    rewrite(torch.utils.data.DataLoader, "__init__", change=change_if_any)


def edit_optimizers(argument: str, change: Change) -> None:
    """Let `change` edit how each of torch's optimizers that knows `argument` is made."""
    for kind in vars(torch.optim).values():
        if not (isinstance(kind, type) and issubclass(kind, Optimizer)):
            continue
        if argument in inspect.signature(kind.__init__).parameters:
            rewrite(kind, "__init__", change=change)
