"""Gradients of sharded models: FSDP2 with the tree as its reduce-scatter.

Every process keeps the sums of its own part of each parameter; lanes arrive round by round from all of them.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

from truestep.base.bits import witness
from truestep.errors import UsageError
from truestep.run.dist.schedule import Schedule
from truestep.run.dist.tree import Node, ScatteredSum


class Rounds:
    """Where a pass stands: which lanes arrive in this round, and whether it is the last."""

    def __init__(self) -> None:
        self.lanes: Sequence[int | None] = ()
        self.all_lanes: list[int] = []
        self.is_last = False
        self.is_watched = False
        """Whether a witness is wanted of what this process computes now."""
        self.witness = 0


class TreeScatter(ReduceScatter):
    """Hands every process its part of all lanes of this round; the sum is there after the last round."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._sum: ScatteredSum[torch.Tensor] | None = None

    @property
    def is_open(self) -> bool:
        """Whether a sum was begun and not finished."""
        return self._sum is not None

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Return memory for a message."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(  # type: ignore[override]
        self,
        *,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,  # noqa: ARG002  a sum, always
        async_op: bool = False,  # noqa: ARG002
    ) -> None:
        """Exchange the parts of one round and add them in tree order."""
        if self._rounds.is_watched:
            self._rounds.witness ^= witness([input_tensor])  # what pads it is zero, and changes nothing
        received = torch.empty_like(input_tensor)
        dist.all_to_all_single(received, input_tensor, group=group)
        if self._sum is None:
            self._sum = ScatteredSum[torch.Tensor](torch.Tensor.add_, lanes=self._rounds.all_lanes)
        parts = received.view(group.size(), -1)
        for lane, part in zip(self._rounds.lanes, parts, strict=True):
            if lane is not None:
                self._sum.push(lane, part)
        if self._rounds.is_last:
            output_tensor.copy_(self._sum.take())
            self._sum = None
        else:
            _let_go(received, self._sum.open, num_parts=group.size())


def _let_go(received: torch.Tensor, sums: dict[Node, torch.Tensor], *, num_parts: int) -> None:
    """Copy partial sums out of a message, so that its memory is free, unless all of it is still needed."""
    memory = received.untyped_storage().data_ptr()
    inside = [node for node, value in sums.items() if value.untyped_storage().data_ptr() == memory]
    if len(inside) < num_parts:
        sums |= {node: sums[node].clone() for node in inside}


def shard(model: nn.Module, *, device: torch.device) -> None:
    """Cut a model's parameters over all processes; blocks in a ModuleList are gathered one at a time."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for blocks in [module for module in model.modules() if isinstance(module, nn.ModuleList)]:
        for block in blocks:
            if any(True for _ in block.parameters()) and not isinstance(block, FSDPModule):
                fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


class ShardSum:
    """Sums the gradients of sharded models; each process ends with the sum of its own parts."""

    def __init__(self, models: Iterable[nn.Module], *, rank: int) -> None:
        self._rank = rank
        self._rounds = Rounds()
        self._schedule: Schedule | None = None
        self.parameters: list[nn.Parameter] = []
        self._scatters: list[TreeScatter] = []
        for model in models:
            self.parameters += [item for item in model.parameters() if item.requires_grad]
            for unit in (module for module in model.modules() if isinstance(module, FSDPModule)):
                scatter = TreeScatter(self._rounds)
                unit.set_custom_reduce_scatter(scatter)
                unit.set_force_sum_reduction_for_comms(True)
                unit.set_gradient_divide_factor(1.0)
                self._scatters.append(scatter)

    @property
    def witness(self) -> int:
        """The witness of the lane that this process has just computed, if it was watched."""
        return self._rounds.witness

    sends_early = True
    """Gradients leave while backward runs, so a lane can have only one."""

    def begin(self, schedule: Schedule, *, may_overlap: bool) -> None:  # noqa: ARG002
        """Start a pass over a batch."""
        self._schedule = schedule
        self._rounds.all_lanes = sorted(lane for turn in schedule.rounds for lane in turn if lane is not None)

    def begin_lane(self, turn: int | None, *, is_watched: bool = False) -> None:
        """Start a round: all processes are in the same one. None: nothing of it goes into the sum."""
        assert self._schedule is not None
        rounds = self._schedule.rounds
        self._rounds.is_watched, self._rounds.witness = is_watched, 0
        self._rounds.lanes = [None] * len(rounds[0]) if turn is None else rounds[turn]
        self._rounds.is_last = turn == len(rounds) - 1

    def end_lane(self, lane: int | None) -> None:  # noqa: ARG002
        """Drop what FSDP took for the gradient before the last round."""
        if not self._rounds.is_last:
            self.clear()

    def finish(self) -> None:
        """See that nothing is half summed."""
        if any(scatter.is_open for scatter in self._scatters):
            raise UsageError(
                "a part of the sharded model had a gradient in some lanes of this step and none in the last. "
                "Pass parallel='flat' to run.place for a model of which some parts are not always used."
            )

    def clear(self) -> None:
        """Forget all gradients: what the next backward gives is new."""
        for parameter in self.parameters:
            parameter.grad = None
