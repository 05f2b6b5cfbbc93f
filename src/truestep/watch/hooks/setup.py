"""How training is set up: what is compiled, what is made parallel, and which rank this process is.

Owns the calls that say so. What follows from them is seen in the digests.
"""

from typing import Any

import torch
import torch.distributed as dist

from truestep.watch.evidence.facts.passes import CompileCalled, ParallelMade
from truestep.watch.evidence.facts.surroundings import GroupJoined
from truestep.watch.evidence.kinds import Facts
from truestep.watch.hooks.table import Observation, calling_module
from truestep.watch.script.tape import Tape


class Setup:
    """`torch.compile` (a module's `compile` calls it), and what makes a model parallel."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def observe_compile(self, model: Any = None, **_: Any) -> None:
        """Name what is compiled; a decorator with arguments calls again with it."""
        self._tape.open_window()
        self._tape.window.is_swapping = False
        if model is not None:
            self._note(CompileCalled(_name_of(model)))

    def observe_parallel(self, what: str, /, *_: Any, process_group: Any = None, **__: Any) -> None:
        """Note what makes a model parallel."""
        self._note(ParallelMade(what, _is_part(process_group)))

    def observe_sharding(self, /, *_: Any, mesh: Any = None, **__: Any) -> None:
        """Note what is sharded."""
        self._note(ParallelMade("fully_shard", _is_part(mesh)))

    def observe_group(self, /, *_: Any, **__: Any) -> Observation:
        """Note which rank of a process group this process has become."""
        yield
        self._tape.note(GroupJoined(dist.get_rank(), dist.get_world_size()))

    def _note(self, facts: Facts) -> None:
        if not _is_torch(calling_module(2)):
            self._tape.note(facts)


def _is_part(group: Any) -> bool:
    """Whether a process group or a mesh, if one is given, leaves ranks out."""
    return group is not None and group.size() < dist.get_world_size()


def _is_torch(caller: str) -> bool:
    """Whether torch calls itself: what its compiler switches and puts back says nothing about the script."""
    return caller.startswith("torch.") and caller != "torch.nn.modules.module"


def _name_of(model: Any) -> str:
    owner = getattr(model, "__self__", model)
    if isinstance(owner, torch.nn.Module):
        return type(owner).__qualname__
    return str(getattr(model, "__qualname__", type(model).__qualname__))
