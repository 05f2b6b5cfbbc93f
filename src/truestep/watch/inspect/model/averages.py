"""Averaged models of torch: how often they were updated, from what, and whether they are used.

Owns `AveragedModel` of `torch.optim.swa_utils`. Averages by hand are left to the rules.
"""

import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from truestep.watch.evidence.facts.structure import AverageKept
from truestep.watch.hooks.table import Hook, Observation, put
from truestep.watch.script import parts
from truestep.watch.script.tape import Tape

_MAX_AVERAGES, _MAX_UPDATES = 8, 64


def watch(tape: Tape) -> None:
    """Follow each averaged model from its creation to the end of the script."""
    averages = _Averages(tape)
    tape.attend(averages, "closing")
    hooks = (
        Hook("torch.optim.swa_utils.AveragedModel.__init__", _Averages.made, is_required=False),
        Hook("torch.optim.swa_utils.AveragedModel.update_parameters", _Averages.updated, is_required=False),
    )
    put(tape, hooks, averages)


@dataclass
class _Average:
    model: "weakref.ref[nn.Module]"
    site: int
    first_step: int
    num_updates: int = 0
    num_moved: int = 0
    """Whether an update found the source changed since the update before, or could not tell."""
    last: list[float] = field(default_factory=list)
    first_update: int = 0
    last_update: int = 0
    update_site: int = 0
    num_calls: int = 0


class _Averages:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._kept: list[_Average] = []

    def made(self, average: Any, /, *_: Any, **__: Any) -> Observation:
        """An averaged model is made."""
        yield
        if len(self._kept) < _MAX_AVERAGES:
            site = self._tape.sites.here(2)
            if not self._kept:
                self._tape.attend(self, "forward_begins")
            self._kept.append(_Average(weakref.ref(average), site, self._tape.num_steps))

    def updated(self, average: Any, /, *args: Any, **kwargs: Any) -> Observation:
        """An averaged model is updated."""
        yield
        source = args[0] if args else kwargs.get("model")
        self._tape.call_listener(self._compare, average, source)

    def _compare(self, average: Any, source: Any) -> None:
        kept = next((item for item in self._kept if item.model() is average), None)
        if kept is None or not isinstance(source, nn.Module):
            return
        if not kept.num_updates:
            kept.first_update, kept.update_site = self._tape.num_steps, self._tape.sites.here(1)
        kept.num_updates += 1
        kept.last_update = self._tape.num_steps
        if not kept.num_moved:
            sums = _sums(source)
            is_moved = not sums or kept.num_updates > _MAX_UPDATES or (bool(kept.last) and sums != kept.last)
            kept.num_moved, kept.last = int(is_moved), sums

    def forward_begins(self, module: nn.Module, _args: Any, _kwargs: Any) -> None:
        for item in self._kept:
            average = item.model()
            if average is not None and (
                module is average or module is vars(average)["_modules"].get("module")
            ):
                item.num_calls += self._tape.num_steps > item.first_step

    def closing(self) -> None:
        for item in self._kept:
            facts = AverageKept(
                made_at=self._tape.sites.table[item.site] if item.site else None,
                num_steps=self._tape.num_steps - item.first_step,
                num_updates=item.num_updates,
                num_moved=item.num_moved,
                num_between=item.last_update - item.first_update,
                updated_at=self._tape.sites.table[item.update_site] if item.update_site else None,
                num_calls=item.num_calls,
            )
            self._tape.note(facts)
        self._kept = []


def _sums(model: nn.Module) -> list[float]:
    """Return the sum of each trained tensor; nothing if not all of them can be read."""
    items = [item for item in parts.parameters(model) if item.requires_grad]
    if not all(parts.is_plain(item) and item.is_cpu and item.is_floating_point() for item in items):
        return []
    return [float(item.detach().sum(dtype=torch.float64)) for item in items]
