"""Means over sequences that end in zeros, as masked padding does, and last positions of such sequences.

Owns reading what `mean` is given and what is chosen with -1, in the steps whose operations are looked at.
"""

from typing import Any

import torch
from torch import Tensor

from truestep.watch.evidence.facts.passes import PaddedEndRead, PaddingAveraged
from truestep.watch.script.host import on_host
from truestep.watch.script.tape import Tape

_MAX_NUMEL, _MAX_LENGTHS = 1 << 18, 8
_AXES, _LEAST_SAMPLES = 3, 4


def watch(tape: Tape) -> None:
    """Note means over places of which the last are zeros, and last places that are."""
    if tape.plan.operations is None:
        return

    def average(index: int, args: tuple[Any, ...], _kwargs: dict[str, Any], _result: Any) -> None:
        given, axes = args[0], args[1] if len(args) > 1 else None
        axis = axes[0] % _AXES if isinstance(axes, list | tuple) and len(axes) == 1 else 0
        lengths = _lengths(given) if axis == 1 and given.requires_grad else None
        if lengths is not None:
            first = lengths[:_MAX_LENGTHS].tolist()
            tape.note(PaddingAveraged(index, axis, given.shape[1], first))

    def choose(_index: int, args: tuple[Any, ...], _kwargs: dict[str, Any], _result: Any) -> None:
        given, axis, place = args[:3]
        # A loop over all places counts them from 0, and may use a mask.
        if place != -1 or given.dim() != _AXES or axis % _AXES > 1 or not given.requires_grad:
            return
        lengths = _lengths(given if axis % _AXES == 1 else given.transpose(0, 1))
        if lengths is not None and len(lengths) >= _LEAST_SAMPLES:
            num_places = given.shape[axis]
            tape.note(PaddedEndRead(len(lengths), int((lengths < num_places).sum()), num_places))

    tape.read_operation("aten.mean.dim", average)
    tape.read_operation("aten.select.int", choose)


def _lengths(states: Tensor) -> Tensor | None:
    """Return after how many places each sample is zero, if all end in zeros and not all in as many."""
    if states.dim() != _AXES or not 0 < states.numel() <= _MAX_NUMEL:
        return None
    if states.shape[0] < 2 or states.shape[2] < 2:
        return None
    is_filled = (on_host(states.detach()) != 0).any(2)
    lengths = is_filled.sum(1)
    is_end = torch.equal(is_filled, torch.arange(states.shape[1]) < lengths[:, None])
    return lengths if is_end and 0 < int(lengths.min()) < int(lengths.max()) else None
