"""The world: how many processes train together, which of them this is, and small talk between them.

Joins the group that torchrun started. Owns no lanes and no gradients: large sums are `reduce`'s.
"""

import os
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import _torchelastic_use_agent_store, rendezvous

from truestep.errors import StateError
from truestep.run.dist.pulse import LOST_PEER, write_line

COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""The last resort. A process that shows no sign of life is noticed long before, by `pulse`."""

JOIN_LIMIT_S = 300.0
"""How long the processes may take to come together. The launchers have met already when they start."""

_THIS_PROCESS = uuid.uuid4().hex
_JOINED = "truestep/joined"
_OWN_STORE = "Set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun on every machine"


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

    def end_group(self, group: dist.ProcessGroup | None) -> None:
        """End a group and its threads. The script may have ended all of them before."""
        if group is not None and dist.is_initialized():
            with suppress(ValueError):
                dist.destroy_process_group(group)


def join() -> World:
    """Join the processes that torchrun (or the script itself) brought together; alone without them."""
    if not dist.is_available() or not (dist.is_initialized() or dist.is_torchelastic_launched()):
        return World()
    if not dist.is_initialized():
        with _limited(JOIN_LIMIT_S):
            _join_launched()
    return World(
        rank=dist.get_rank(),
        size=dist.get_world_size(),
        local_rank=dist.get_node_local_rank(fallback_rank=dist.get_rank()),
    )


def _join_launched() -> None:
    """Make the group of the processes that a launcher started."""
    # Small talk goes over gloo, large sums over what torch has for tensors on the accelerator.
    device = torch.accelerator.current_accelerator(check_available=True)
    there = None if device is None else dist.get_default_backend_for_device(device)
    backend = "gloo" if device is None or there == "gloo" else f"cpu:gloo,{device.type}:{there}"
    store, rank, size = next(iter(rendezvous("env://", timeout=COLLECTIVE_TIMEOUT)))
    host = socket.gethostname()
    name = f"{_THIS_PROCESS} {os.getpid()} {host}"
    if store.compare_set(f"{_JOINED}/{rank}", "", name) != name.encode():
        # Their addresses are still in it: connecting to them fails, or reaches somebody else (torch 2.13).
        raise StateError(
            f"torchrun restarted these processes with the store of the dead ones, in which they "
            f"cannot find each other. {_OWN_STORE}: then each start has a separate store. On one machine, "
            f"`truestep run` does without."
        )
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=COLLECTIVE_TIMEOUT)
    if rank == 0 and _torchelastic_use_agent_store():
        last = store.get(f"{_JOINED}/{size - 1}").decode()
        if last.split(" ", 2)[2] != host:  # ranks are counted machine by machine
            write_line(f"should a machine be lost, this run could not take it in again. {_OWN_STORE}")


@contextmanager
def _limited(limit_s: float) -> Iterator[None]:
    """End this process when the block takes longer: calls into torch can wait beyond their timeouts."""

    def give_up() -> None:
        write_line(
            f"the processes of this run have not found each other within {limit_s:.0f} s; ending the one "
            f"with pid {os.getpid()} on {socket.gethostname()}. Look at the output of the others, and check "
            f"that the machines reach each other"
        )
        os._exit(LOST_PEER)

    timer = threading.Timer(limit_s, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
