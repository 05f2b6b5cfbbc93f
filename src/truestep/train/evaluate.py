"""Evaluation: every sample once, in eval mode, without gradients, the model's modes as before afterwards."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import nn

from truestep.data import Loader
from truestep.errors import UsageError
from truestep.rng import seed_generators
from truestep.train.place import move


class Metric(Protocol):
    """What is needed of a metric: torchmetrics' metrics and collections have it."""

    def reset(self) -> None:
        """Forget everything seen."""

    def update(self, *args: Any) -> None:
        """See one lane's predictions and targets."""

    def compute(self) -> Any:
        """Return the metric over everything seen."""


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
            f"forward=lambda model, batch: (prediction, target) to say what the metric is given."
        )
    return model(batch[0]), batch[1]


def evaluate(
    model: nn.Module,
    loader: Loader,
    *,
    metric: Metric,
    forward: Callable[[nn.Module, Any], tuple[Any, ...]] | None,
    device: torch.device,
    seed: int,
    num_lanes: int,
) -> Any:
    """Return what the metric computes over the loader's whole dataset, in its order, lane by lane."""
    forward = forward or _forward_pair
    metric.reset()
    if device.type != "cpu" and hasattr(metric, "to"):
        metric.to(device)
    with eval_mode(model):
        for batch in loader.feed_in_order(seed=seed, num_lanes=num_lanes, lanes=range(num_lanes)):
            for lane in batch.lanes:
                # bits: sampling in a forward pass (Monte-Carlo dropout) draws the same each time.
                seed_generators(seed, "evaluate", batch.step, lane.lane)
                data = lane.data if device.type == "cpu" else move(lane.data, device)
                metric.update(*forward(model, data))
    return _plain(metric.compute())


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
