"""Means over sequences that end in zeros, as masked padding does.

Owns reading what `mean` is given, in the steps whose operations are looked at.
"""

from typing import Any

import torch

from truestep.watch.evidence.facts.passes import PaddingAveraged
from truestep.watch.script.host import on_host
from truestep.watch.script.tape import Tape

_MAX_NUMEL, _MAX_LENGTHS = 1 << 18, 8
_AXES = 3


def watch(tape: Tape) -> None:
    """Note means over places of which the last are zeros, not as many in each sample."""
    if tape.plan.operations is None:
        return

    def read(index: int, args: tuple[Any, ...], _kwargs: dict[str, Any], _result: Any) -> None:
        given, axes = args[0], args[1] if len(args) > 1 else None
        if not given.requires_grad or given.dim() != _AXES or not 0 < given.numel() <= _MAX_NUMEL:
            return
        axis = axes[0] % _AXES if isinstance(axes, list | tuple) and len(axes) == 1 else 0
        if axis != 1 or given.shape[0] < 2 or given.shape[2] < 2:
            return
        is_filled = (on_host(given.detach()) != 0).any(2)
        lengths = is_filled.sum(1)
        places = torch.arange(given.shape[1])
        is_end = torch.equal(is_filled, places < lengths[:, None])
        if is_end and 0 < int(lengths.min()) < int(lengths.max()):
            first = lengths[:_MAX_LENGTHS].tolist()
            tape.note(PaddingAveraged(index, axis, given.shape[1], first))

    tape.read_operation("aten.mean.dim", read)
