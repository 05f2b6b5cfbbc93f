"""Ranks of a job: weights before they are sharded, what DDP waits for, and when collectives were entered.

Owns what one process can know of it. Other processes are asked nothing, and no collective is added: rules and
tables compare. When collectives were entered is in torch's flight recorder, which is always on.
"""

import re
from time import time_ns
from typing import Any

import torch
from torch import nn

from truestep.base.device import peak_bytes
from truestep.watch.digests.fold import fold
from truestep.watch.evidence.facts.surroundings import GradientsMissed, GroupJoined, ModelSharded, RankEnded
from truestep.watch.evidence.kinds import Place
from truestep.watch.script import collectives, parts
from truestep.watch.script.sites import path_of
from truestep.watch.script.tape import Tape

_MISSED = re.compile(r"did not receive grad for rank \d+: ([\d ]+)")
_MAX_NAMES = 64


def watch(tape: Tape) -> None:
    """Note what is known when the script ends."""
    if torch.distributed.is_available():
        tape.listen(_Ranks(tape), "closing")


def note_sharded(tape: Tape, model: Any) -> None:
    """Note a model's parameters before it is sharded: they should be alike on all ranks."""
    if isinstance(model, nn.Module) and tape.plan.inspect:
        named = [(name, item) for name, item in parts.named_parameters(model) if parts.is_plain(item)]
        digests = {name: fold([(name, item)]) for name, item in named if item.is_cpu}
        if digests:
            tape.note(ModelSharded(type(model).__qualname__, digests))


class _Ranks:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def closing(self) -> None:
        if self._tape.has(GroupJoined):
            self._tape.note(RankEnded(collectives.arrivals(), peak_bytes(), time_ns()))
        self._note_missed()

    def _note_missed(self) -> None:
        """Name the parameters that DDP's error gives by their numbers."""
        error = self._tape.failed_with
        found = _MISSED.search(str(error)) if isinstance(error, RuntimeError) else None
        frames = _frames(error) if found is not None else []
        wrapper = next((item for item in map(_wrapper_of, reversed(frames)) if item is not None), None)
        if found is None or wrapper is None:
            return
        model: Any = wrapper.module
        ignored = getattr(wrapper, "parameters_to_ignore", ())
        every = [
            name for name, item in parts.named_parameters(model) if item.requires_grad and name not in ignored
        ]
        missed = [every[place] for place in map(int, found[1].split()) if place < len(every)]
        place = next((item for item in map(self._place_of, reversed(frames)) if item is not None), None)
        facts = GradientsMissed(type(model).__qualname__, missed[:_MAX_NAMES], len(every), place)
        self._tape.note(facts)

    def _place_of(self, trace: Any) -> Place | None:
        code = trace.tb_frame.f_code
        is_own = self._tape.sites.is_own(code.co_filename)
        return Place(path_of(code.co_filename), trace.tb_lineno, code.co_name) if is_own else None


def _frames(error: BaseException | None) -> list[Any]:
    found, trace = [], None if error is None else error.__traceback__
    while trace is not None:
        found.append(trace)
        trace = trace.tb_next
    return found


def _wrapper_of(trace: Any) -> Any:
    owner = trace.tb_frame.f_locals.get("self")
    return owner if isinstance(owner, nn.parallel.DistributedDataParallel) else None
