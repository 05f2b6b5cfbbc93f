"""How training is set up: what is compiled, and what is made parallel.

Owns the calls that say so. What follows from them is seen in the digests.
"""

from typing import Any

import torch

from truestep.watch.evidence.facts.passes import CompileCalled, ParallelMade
from truestep.watch.evidence.kinds import Facts
from truestep.watch.hooks.table import Hook, calling_module
from truestep.watch.script.tape import Tape

_SHARDING = "torch.distributed.fsdp._fully_shard._fully_shard"


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

    def _note(self, facts: Facts) -> None:
        if not _is_torch(calling_module(2)):
            self._tape.note(facts)


HOOKS = (
    Hook("torch.compile", Setup.observe_compile),
    Hook(
        "torch.nn.parallel.DistributedDataParallel.__init__",
        Setup.observe_parallel,
        given=("DistributedDataParallel",),
        is_required=torch.distributed.is_available(),
    ),
    Hook("torch.nn.DataParallel.__init__", Setup.observe_parallel, given=("DataParallel",)),
)
SHARDING = (
    Hook(f"{_SHARDING}.fully_shard", Setup.observe_sharding),
    # Where these were imported already. Otherwise they will take the function as it is then.
    Hook("torch.distributed.fsdp._fully_shard.fully_shard", Setup.observe_sharding, is_required=False),
    Hook("torch.distributed.fsdp.fully_shard", Setup.observe_sharding, is_required=False),
)


def _is_part(group: Any) -> bool:
    """Whether a process group or a mesh, if one is given, leaves ranks out."""
    return group is not None and group.size() < torch.distributed.get_world_size()


def _is_torch(caller: str) -> bool:
    """Whether torch calls itself: what its compiler switches and puts back says nothing about the script."""
    return caller.startswith("torch.") and caller != "torch.nn.modules.module"


def _name_of(model: Any) -> str:
    owner = getattr(model, "__self__", model)
    if isinstance(owner, torch.nn.Module):
        return type(owner).__qualname__
    return str(getattr(model, "__qualname__", type(model).__qualname__))
