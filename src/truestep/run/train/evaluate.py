"""Evaluation: every sample once, in eval mode, without gradients, the same value on any number of processes.

Owns running the lanes and giving the metric what forward returned for them, in their order.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from truestep.base.rng import kept_generators, seed_generators
from truestep.errors import UsageError
from truestep.run.data import Batch, Loader, filled_lanes
from truestep.run.dist import Schedule, World, lanes_of, schedule
from truestep.run.train.place import move

Forward = Callable[[nn.Module, Any], tuple[Any, ...]]


class Metric(Protocol):
    """The methods a metric needs; torchmetrics' metrics and collections have them."""

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
    """Switch a model to eval mode, and restore each module's mode afterwards."""
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


@contextmanager
def without_sync(metric: Any) -> Iterator[None]:
    """Keep torchmetrics from merging the states of all processes in compute: each has everything already."""
    parts: list[Any] = list(metric.modules()) if isinstance(metric, nn.Module) else []
    former = [(part, part._to_sync) for part in parts if hasattr(part, "_to_sync")]
    for part, _ in former:
        part._to_sync = False
    try:
        yield
    finally:
        for part, to_sync in former:
            part._to_sync = to_sync


def evaluate(
    model: nn.Module, loader: Loader, *, metric: Metric, forward: Forward | None, under: Conditions
) -> Any:
    """Return what the metric computes over the loader's whole dataset, in its order, lane by lane.

    Several processes send each other what forward returned, and each updates the metric with all of it: the
    value has the same bits on any number of processes, and each of them returns it.
    """
    if under.device.type != "cpu" and hasattr(metric, "to"):
        metric.to(under.device)
    metric.reset()
    with eval_mode(model), without_sync(metric), kept_generators():
        lanes = _run_lanes(model, loader, forward=forward or _forward_pair, under=under)
        for number, outputs in enumerate(lanes):
            seed_generators(under.seed, "metric", number)  # bits: of a metric that draws
            metric.update(*outputs)
        return _plain(metric.compute())


def _run_lanes(
    model: nn.Module, loader: Loader, *, forward: Forward, under: Conditions
) -> Iterator[tuple[Any, ...]]:
    """Yield what forward returns for every lane of all processes, in the order of batches and lanes."""
    world, num_lanes = under.world, under.num_lanes
    lanes = lanes_of(world.rank, size=world.size, num_lanes=num_lanes)
    must_fill = under.in_step and world.size > 1
    plan = cache(lambda num_samples: _plan(num_samples, under))
    spare: Any = None
    for index, batch in enumerate(loader.feed_in_order(seed=under.seed, num_lanes=num_lanes, lanes=lanes)):
        if must_fill and index == 0:
            spare = _share_spare(batch, plan(batch.num_samples), world)
        outputs = []
        for lane in batch.lanes:
            # bits: sampling in a forward pass (Monte-Carlo dropout) draws the same each time.
            seed_generators(under.seed, "evaluate", batch.step, lane.lane)
            data = lane.data if under.device.type == "cpu" else move(lane.data, under.device)
            outputs.append(forward(model, data))
        if must_fill:
            spare = batch.lanes[0].data if batch.lanes else spare
            for _ in range(len(plan(batch.num_samples).rounds) - len(batch.lanes)):
                forward(model, move(spare, under.device))  # the others wait for this process in theirs
        # bits: processes hold contiguous lanes, so their order is that of the lanes.
        yield from outputs if world.size == 1 else _share(outputs, under)


def _share(outputs: list[tuple[Any, ...]], under: Conditions) -> Iterator[tuple[Any, ...]]:
    """Yield all processes' outputs of one batch, in order of rank."""
    # A copy of a part (a column of the predictions) is sent without the rest of its memory.
    own = tree_map_only(torch.Tensor, lambda tensor: tensor.cpu().clone(), outputs)
    for of_rank in under.world.gather(own):
        yield from tree_map_only(torch.Tensor, lambda tensor: tensor.to(under.device), of_rank)


def _plan(num_samples: int, under: Conditions) -> Schedule:
    filled = filled_lanes(num_samples, num_lanes=under.num_lanes)
    return schedule(filled, size=under.world.size, num_lanes=under.num_lanes)


def _share_spare(batch: Batch, plan: Schedule, world: World) -> Any:
    """Return one lane's data for a process that has none in the first batch, which is the only one then."""
    if all(plan.lanes_of(rank) for rank in range(world.size)):
        return None
    offered = world.gather([lane.data for lane in batch.lanes[:1]])
    return next(data for rank in offered for data in rank)


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
