"""The world: how many processes train together, which of them this is, and small talk between them.

Joins the group that torchrun started. Owns no lanes and no gradients: large sums are `reduce`'s.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""The last resort. A process that shows no sign of life is noticed long before, by `pulse`."""


@dataclass(frozen=True, kw_only=True)
class World:
    """The processes of one run, as seen from one of them. Alone, nothing is ever sent."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def is_first(self) -> bool:
        """Whether this process owns the folder, the record and the terminal."""
        return self.rank == 0

    def add(self, vector: torch.Tensor) -> None:
        """Add up a vector over all processes, in place; each entry is zero on all processes but one.

        Then the sum is exact in whatever order it is taken.
        """
        if self.size > 1:
            dist.all_reduce(vector)

    def gather(self, item: Any) -> list[Any]:
        """Return every process's item, in order of rank."""
        if self.size == 1:
            return [item]
        items = [None] * self.size
        dist.all_gather_object(items, item)
        return items

    def share(self, item: Any) -> Any:
        """Return the first process's item."""
        if self.size == 1:
            return item
        items = [item]
        dist.broadcast_object_list(items, src=0)
        return items[0]

    def new_group(self) -> dist.ProcessGroup | None:
        """Return a group of all processes for talk beside the main thread's own; None on one process."""
        return dist.new_group(backend="gloo") if self.size > 1 else None


def join() -> World:
    """Join the processes that torchrun (or the script itself) brought together; alone without them."""
    if not dist.is_available() or not (dist.is_initialized() or dist.is_torchelastic_launched()):
        return World()
    if not dist.is_initialized():
        # Small talk goes over gloo, large sums over NCCL where the tensors are on a GPU (untested on one).
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT)
    return World(
        rank=dist.get_rank(),
        size=dist.get_world_size(),
        local_rank=dist.get_node_local_rank(fallback_rank=dist.get_rank()),
    )
