"""Arguments of somebody's calls, edited on their way: how knobs reach loaders, optimizers and switches.

Owns the wrapping. Which arguments, and what they become, is each knob's own.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from truestep.watch.hooks.table import Function, Hook, bound, calling_module, put, resolve
from truestep.watch.script.tape import Tape

Change = Callable[[dict[str, Any]], None]
"""Edits arguments by name, in place; those that the caller left out are absent."""

_OURS = "truestep.run.data"
"""Our own loaders build DataLoaders and switch threads for a moment: that is not the script's doing."""


def rewrite(target: str, *, change: Change) -> None:
    """Let `change` edit the arguments of each call of a function, unless our own loaders make it."""
    put(None, [Hook(target, _rewritten, given=(change,), changes=True)])


def _rewritten(change: Change, act: Function, /, *args: Any, **kwargs: Any) -> Any:
    given = bound(act, args, kwargs)
    if given is not None and not calling_module().startswith(_OURS):
        change(given.arguments)
        args, kwargs = given.args, given.kwargs
    return act(*args, **kwargs)


def fix_argument(target: str, *, value: Any) -> None:
    """Call a switch with a value now, and with the same value wherever the script turns it again."""
    put(None, [Hook(target, _fixed, given=(value,), changes=True)])
    owner, name = resolve(target)
    getattr(owner, name)(value)


def _fixed(value: Any, act: Function, /, *args: Any, **kwargs: Any) -> Any:
    # torch turns switches for itself and back: in loader workers, while it compiles.
    is_script = not calling_module().startswith(("torch.", _OURS))
    return act(value) if is_script else act(*args, **kwargs)


def edit_loaders(tape: Tape, change: Change) -> None:
    """Let `change` edit the arguments of each DataLoader that has, or will have, workers."""
    planned = tape.plan.workers

    def change_if_any(arguments: dict[str, Any]) -> None:
        num_workers = arguments.get("num_workers", 0) if planned is None else planned
        if num_workers:
            change(arguments)

    rewrite("torch.utils.data.DataLoader.__init__", change=change_if_any)


def edit_optimizers(argument: str, change: Change) -> None:
    """Let `change` edit how each of torch's optimizers that knows `argument` is made."""
    for name, kind in vars(torch.optim).items():
        if not (isinstance(kind, type) and issubclass(kind, Optimizer)):
            continue
        if argument in inspect.signature(kind.__init__).parameters:
            rewrite(f"torch.optim.{name}.__init__", change=change)
