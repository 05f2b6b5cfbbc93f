"""Passes for evaluation: what runs in place of a module's own forward while it is evaluated.

Owns what counts as evaluation: an outermost module, not in training mode, without gradients.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from truestep.watch.script import parts
from truestep.watch.script.tape import Tape

Forward = Callable[..., Any]
_ABSENT = object()


def in_evaluation(tape: Tape, make: Callable[[nn.Module, Forward], Forward]) -> None:
    """Call what `make(module, forward)` gives instead of `forward`, in each pass for evaluation."""
    placed: list[tuple[nn.Module, Any]] = []

    def restore(*_: Any) -> None:
        while placed:
            module, own = placed.pop()
            if own is _ABSENT:
                vars(module).pop("forward", None)
            else:
                module.forward = own

    def begin(module: nn.Module, _args: Any, _kwargs: Any) -> None:
        restore()  # a pass that failed did not end
        if not is_evaluation(module):
            return
        own = vars(module).get("forward", _ABSENT)
        module.forward = make(module, module.forward)
        placed.append((module, own))

    tape.listen(forward_begins=begin, forward_ends=restore)


def is_evaluation(module: nn.Module) -> bool:
    """Whether a pass through this module would be one for evaluation."""
    return not parts.is_training(module) and not torch.is_grad_enabled()
