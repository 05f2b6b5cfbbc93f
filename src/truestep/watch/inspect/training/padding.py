"""The last positions of sequences that end in zeros, as masked padding does.

Owns reading what is chosen with -1, in the steps whose operations are looked at.
"""

from typing import Any

import torch
from torch import Tensor

from truestep.watch.evidence.facts.passes import PaddedEndRead
from truestep.watch.script.host import on_host
from truestep.watch.script.leaves import find_tensors
from truestep.watch.script.parts import is_plain
from truestep.watch.script.tape import Tape

_MAX_NUMEL = 1 << 18
_AXES, _LEAST_SAMPLES = 3, 4


def watch(tape: Tape) -> None:
    """Note last places that are padding."""
    if tape.plan.operations is None:
        return
    sequences = _Sequences(tape)
    tape.listen_near(forward_begins=sequences.begin)
    tape.read_operation("aten.select.int", sequences.choose)
    tape.read_operation("aten.index.Tensor", sequences.pick)


class _Sequences:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._lengths: dict[tuple[int, ...], Tensor] = {}
        """Of the padded inputs of the model that is called: by their samples and places."""

    def begin(self, _module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A model is called."""
        self._lengths = {}
        for _, leaf in find_tensors((args, kwargs)) if self._tape.is_looked_at else ():
            is_sequence = is_plain(leaf) and leaf.dim() == _AXES and leaf.is_floating_point()
            lengths = _lengths(leaf) if is_sequence else None
            if lengths is not None:
                self._lengths[tuple(leaf.shape[:2])] = lengths

    def choose(self, _index: int, args: tuple[Any, ...], _kwargs: dict[str, Any], _result: Any) -> None:
        given, axis, place = args[:3]
        # A loop over all places counts them from 0, and may use a mask.
        if place == -1 and given.dim() == _AXES and axis % _AXES <= 1 and given.requires_grad:
            self._read_last(given if axis % _AXES == 1 else given.transpose(0, 1))

    def pick(self, _index: int, args: tuple[Any, ...], _kwargs: dict[str, Any], _result: Any) -> None:
        given, places = args[:2]
        if given.dim() != _AXES or not given.requires_grad or len(places) != 2 or None in places:
            return
        rows, last = (on_host(item.detach()) for item in places)
        is_last = last.numel() > 0 and last.dtype == torch.int64 and bool((last == -1).all())
        if is_last and torch.equal(rows, torch.arange(len(given))):
            self._read_last(given)

    def _read_last(self, states: Tensor) -> None:
        """The last places of states are read, which have samples and places as their first axes."""
        own = _lengths(states)
        lengths = self._lengths.get(tuple(states.shape[:2])) if own is None else own
        if lengths is not None and len(lengths) >= _LEAST_SAMPLES:
            num_places = states.shape[1]
            num_ended = int((lengths < num_places).sum())
            self._tape.note(PaddedEndRead(len(lengths), num_ended, num_places, own is not None))


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
