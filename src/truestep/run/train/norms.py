"""BatchNorm's running statistics over lanes.

Owns `running_mean`, `running_var` and `num_batches_tracked` of every BatchNorm while a pass over lanes lasts.
Leaves to the loop when a lane begins and ends.
"""

from collections.abc import Iterable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from truestep.errors import UsageError
from truestep.run.dist import World

_RUNNING = ("running_mean", "running_var")


class Norms:
    """Running statistics that do not depend on the number of processes.

    Every lane starts from the statistics that the pass began with, wherever it runs. `finish` exchanges what
    each lane made of them and replays the moving average in the order of lanes, on every process alike. All
    processes call it once per pass, those without a lane too. A lane that is computed to be dropped has a
    begin and no end. False where there is nothing to do.

    Between begin and end of a lane the modules hold real statistics: a forward in eval mode amid a lane (a
    teacher, pseudo-labels) is not disturbed.
    """

    def __init__(self, modules: Iterable[nn.Module], *, num_lanes: int) -> None:
        self._norms = _batch_norms(modules) if num_lanes > 1 else []
        self._num_lanes = num_lanes
        self._running: list[torch.Tensor] = []  # mean and variance of each norm in turn
        self._counts: list[torch.Tensor] = []
        self._start: torch.Tensor | None = None
        self._start_views: tuple[torch.Tensor, ...] = ()
        self._start_counts = torch.empty(0)
        self._seen_counts = torch.empty(0)  # at the beginning of this lane
        self._rows: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        _check_norms(self._norms)

    def __bool__(self) -> bool:
        return bool(self._norms)

    def begin_lane(self) -> None:
        """Show the modules the statistics from the beginning of the pass."""
        if self._start is None:
            self._open()
            return
        # bits: a lane's result must not depend on which lanes ran in this process before it.
        torch._foreach_copy_(self._running, self._start_views)
        for index, module in enumerate(self._norms):
            if module.momentum is None:  # only the cumulative average looks at the count
                self._counts[index].copy_(self._start_counts[index])
        self._seen_counts = torch.stack(self._counts)

    def end_lane(self, lane: int) -> None:
        """Take what this lane made of the statistics."""
        self._rows[lane] = torch.cat(self._running), torch.stack(self._counts) - self._seen_counts

    def finish(self, world: World) -> None:
        """Exchange all lanes' statistics and leave the same bits in every process's modules."""
        if self._start is None:
            self._open()
        start = self._start
        assert start is not None
        width, num_norms = start.numel(), len(self._norms)
        # bits: minus zero is the number that changes no other when added, plus zero included.
        table = start.new_full((self._num_lanes, width + num_norms), -0.0)
        for lane, (row, updates) in self._rows.items():
            table[lane, :width] = row
            table[lane, width:] = updates
        world.add(table)
        running = self._replay(start, table[:, :width], table[:, width:].double())
        torch._foreach_copy_(self._running, running.split([tensor.numel() for tensor in self._running]))
        counts = self._start_counts + table[:, width:].sum(0).to(self._start_counts.dtype)
        torch._foreach_copy_(self._counts, counts.unbind())
        self._start, self._start_views, self._rows = None, (), {}

    def _open(self) -> None:
        # Looked up anew in each pass: moving or loading a model may replace its buffers.
        self._running = [_buffer(module, name) for module in self._norms for name in _RUNNING]
        self._counts = [_buffer(module, "num_batches_tracked") for module in self._norms]
        self._start = torch.cat(self._running)
        if self._start.dtype in (torch.bfloat16, torch.float16):
            self._start = self._start.float()  # counts of updates travel in the same table
        self._start_views = self._start.split([tensor.numel() for tensor in self._running])
        self._start_counts = self._seen_counts = torch.stack(self._counts)
        self._rows = {}

    def _replay(self, start: torch.Tensor, rows: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
        """Return the moving average over all lanes' updates, lane after lane.

        A lane that made `row` of `start` by k updates makes `row + (1 - momentum)^k * (running - start)` of
        `running`: exactly `row` for the first lane. For a cumulative average (momentum None) of n0 updates at
        the start of the pass and n before this lane it is
        `row + n0 / (n + k) * (running - start) + (n - n0) / (n + k) * (running - row)`.
        """
        momenta = [module.momentum for module in self._norms]
        sizes = torch.tensor([2 * mean.numel() for mean in self._running[::2]], device=start.device)
        owner = torch.repeat_interleave(sizes, output_size=start.numel())
        keep = torch.tensor([1.0 - (m or 0.0) for m in momenta], dtype=torch.float64, device=start.device)
        decay, drift = keep**updates, torch.zeros_like(updates)
        has_cumulative = None in momenta
        if has_cumulative:
            is_cumulative = torch.tensor([m is None for m in momenta], device=start.device)
            first = self._start_counts.double()
            after = (first + updates.cumsum(0)).clamp(min=1.0)
            decay = torch.where(is_cumulative, first / after, decay)
            drift = torch.where(is_cumulative, (after - updates - first) / after, drift)
        decay = torch.where(updates > 0, decay, torch.inf)  # marks what the lane did not update
        decays, drifts = decay.to(start.dtype).unbind(), drift.to(start.dtype).unbind()
        running = start
        for row, decay, drift in zip(rows.unbind(), decays, drifts, strict=True):
            # bits: in the order of lanes, by the same operations on every process.
            factor = decay.index_select(0, owner)
            moved = torch.addcmul(row, factor, running - start)
            if has_cumulative:
                moved.addcmul_(drift.index_select(0, owner), running - row)
            running = torch.where(factor.isinf(), running, moved)
        return running


def _buffer(module: _BatchNorm, name: str) -> torch.Tensor:
    tensor = module._buffers[name]
    assert tensor is not None
    return tensor


def _batch_norms(modules: Iterable[nn.Module]) -> list[_BatchNorm]:
    """Return the BatchNorms that keep running statistics, each once."""
    found = {
        id(part): part
        for module in modules
        for part in module.modules()
        if isinstance(part, _BatchNorm) and part.running_mean is not None
    }
    return list(found.values())


def _check_norms(norms: list[_BatchNorm]) -> None:
    if any(isinstance(module, nn.SyncBatchNorm) for module in norms):
        raise UsageError(
            "SyncBatchNorm takes its statistics over whatever lanes run at the same time, so the result "
            "depends on the number of processes. Use BatchNorm, which takes them over one lane, or lanes=1."
        )
    devices = sorted({str(_buffer(module, name).device) for module in norms for name in _RUNNING})
    if len(devices) > 1:
        raise UsageError(
            f"the BatchNorm modules of one process must be on one device, got {' and '.join(devices)}. "
            f"Place the model with run.place(model)."
        )
