"""Evaluation: every sample once, in eval mode, without gradients, the same value on any number of processes.

Owns running the lanes and exchanging their metric states. Leaves what a state is and how two become one to
`fold`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from truestep.base.rng import kept_generators, seed_generators
from truestep.errors import UsageError
from truestep.run.data import Batch, Loader, filled_lanes
from truestep.run.dist import Schedule, World, lanes_of, schedule
from truestep.run.train.fold import Fold, State, find_obstacle, pack, to_device, unpack, without_sync
from truestep.run.train.place import move

_BATCHES_PER_MESSAGE = 32
"""States of this many batches travel together: few messages, and bounded memory."""

Forward = Callable[[nn.Module, Any], tuple[Any, ...]]


class Metric(Protocol):
    """What is needed of a metric: torchmetrics' metrics and collections have it."""

    def reset(self) -> None:
        """Forget everything seen."""

    def update(self, *args: Any) -> None:
        """See one lane's predictions and targets."""

    def compute(self) -> Any:
        """Return the metric over everything seen."""


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What an evaluation takes from the run that it belongs to."""

    device: torch.device
    seed: int
    num_lanes: int
    world: World
    in_step: bool = False
    """Whether a forward needs all processes (a sharded model), so that all have to run equally many."""


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Switch a model to eval mode, and every module back to its own former mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, was_training in modes:
            module.training = was_training


def _forward_pair(model: nn.Module, batch: Any) -> tuple[Any, ...]:
    if not (isinstance(batch, list | tuple) and len(batch) == 2):
        raise UsageError(
            f"evaluate expects batches (input, target), got {type(batch).__name__}. Pass "
            f"forward=lambda model, batch: (prediction, target) to choose what the metric gets."
        )
    return model(batch[0]), batch[1]


def evaluate(
    model: nn.Module, loader: Loader, *, metric: Metric, forward: Forward | None, under: Conditions
) -> Any:
    """Return what the metric computes over the loader's whole dataset, in its order, lane by lane.

    With several lanes each lane's state is made on its own, and all are folded in the order of batches and
    lanes: the value has the same bits on any number of processes, and each of them returns it. A metric that
    cannot be folded is updated lane after lane, and refused on several processes.
    """
    obstacle = find_obstacle(metric)
    if obstacle is not None and under.world.size > 1:
        raise UsageError(_refusal(obstacle, under.world))
    if under.device.type != "cpu" and hasattr(metric, "to"):
        metric.to(under.device)
    metric.reset()
    is_folded = obstacle is None and under.num_lanes > 1
    taker = _Folding(metric, under.world) if is_folded else _Updating(metric)
    with eval_mode(model), without_sync(metric), kept_generators():
        _run_lanes(model, loader, forward=forward or _forward_pair, taker=taker, under=under)
        taker.finish()
        return _plain(metric.compute())


class _Updating:
    """Updates a metric lane after lane."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def take(self, outputs: tuple[Any, ...], **_: int) -> None:
        self._metric.update(*outputs)

    def end_batch(self) -> None:
        """Nothing is left to do."""

    def finish(self) -> None:
        """Nothing is left to do."""


class _Folding:
    """Makes each lane's state on its own, exchanges states from time to time, folds them in order."""

    def __init__(self, metric: Metric, world: World) -> None:
        self._fold, self._world = Fold(metric), world
        self._states: list[tuple[int, int, State]] = []
        self._num_batches = 0
        self._is_checked = world.size == 1
        self._obstacle: str | None = None

    def take(self, outputs: tuple[Any, ...], *, step: int, lane: int) -> None:
        self._states.append((step, lane, self._fold.make(outputs)))
        if not self._is_checked:
            self._is_checked = True
            self._obstacle = self._fold.find_hidden(outputs)

    def end_batch(self) -> None:
        self._num_batches += 1
        if self._num_batches % _BATCHES_PER_MESSAGE == 0:
            self._exchange()

    def finish(self) -> None:
        self._exchange()
        self._fold.load()

    def _exchange(self) -> None:
        states, self._states = to_device(self._states, torch.device("cpu")), []
        if self._world.size > 1:
            heard = self._world.gather((self._obstacle, pack(states)))
            for obstacle, _ in heard:
                if obstacle is not None:
                    raise UsageError(_refusal(obstacle, self._world))
            states = [entry for _, packed in heard for entry in unpack(packed)]
        together = sorted(states, key=lambda entry: entry[:2])
        # bits: by batch and lane, never by process.
        self._fold.add(state for _, _, state in together)


def _run_lanes(
    model: nn.Module, loader: Loader, *, forward: Forward, taker: _Updating | _Folding, under: Conditions
) -> None:
    """Give the taker what forward returns for each of this process's lanes, batch after batch."""
    world, num_lanes = under.world, under.num_lanes
    lanes = lanes_of(world.rank, size=world.size, num_lanes=num_lanes)
    must_fill = under.in_step and world.size > 1
    plan = cache(lambda num_samples: _plan(num_samples, under))
    spare: Any = None
    for index, batch in enumerate(loader.feed_in_order(seed=under.seed, num_lanes=num_lanes, lanes=lanes)):
        if must_fill and index == 0:
            spare = _share_spare(batch, plan(batch.num_samples), world)
        for lane in batch.lanes:
            # bits: sampling in a forward pass (Monte-Carlo dropout) draws the same each time.
            seed_generators(under.seed, "evaluate", batch.step, lane.lane)
            data = lane.data if under.device.type == "cpu" else move(lane.data, under.device)
            taker.take(forward(model, data), step=batch.step, lane=lane.lane)
        if must_fill:
            spare = batch.lanes[0].data if batch.lanes else spare
            for _ in range(len(plan(batch.num_samples).rounds) - len(batch.lanes)):
                forward(model, move(spare, under.device))  # the others wait for this process in theirs
        taker.end_batch()


def _plan(num_samples: int, under: Conditions) -> Schedule:
    filled = filled_lanes(num_samples, num_lanes=under.num_lanes)
    return schedule(filled, size=under.world.size, num_lanes=under.num_lanes)


def _share_spare(batch: Batch, plan: Schedule, world: World) -> Any:
    """Return one lane's data for a process that has none in the first batch, which is the only one then."""
    if all(plan.lanes_of(rank) for rank in range(world.size)):
        return None
    offered = world.gather([lane.data for lane in batch.lanes[:1]])
    return next(data for rank in offered for data in rank)


def _refusal(obstacle: str, world: World) -> str:
    return (
        f"this metric cannot be computed on {world.size} processes: {obstacle}, so the states of several "
        f"lanes cannot be made into one. Pass a torchmetrics Metric, or a MetricCollection of them, whose "
        f"states are made with add_state(..., dist_reduce_fx='sum') or another named reduction; or evaluate "
        f"on one process."
    )


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
