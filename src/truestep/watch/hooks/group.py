"""Process groups: which rank of how many this process is.

Owns `init_process_group`. What is sent between processes is not observed.
"""

from typing import Any

import torch.distributed as dist

from truestep.watch.evidence.facts.surroundings import GroupJoined
from truestep.watch.hooks.table import Hook, Observation
from truestep.watch.script.tape import Tape


class Group:
    """The beginning of a process group."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def observe(self, /, *_: Any, **__: Any) -> Observation:
        """Note which rank this process has become."""
        yield
        self._tape.note(GroupJoined(dist.get_rank(), dist.get_world_size(), dist.get_backend()))


HOOKS = (
    Hook(
        "torch.distributed.distributed_c10d.init_process_group",
        Group.observe,
        also=("torch.distributed.init_process_group",),
        is_required=dist.is_available(),
    ),
)
