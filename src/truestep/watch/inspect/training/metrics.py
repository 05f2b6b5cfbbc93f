"""Metrics that a scheduler is given: their values, and which direction it takes for better.

Owns reading them from `ReduceLROnPlateau`, the one scheduler that goes by a metric.
"""

from typing import Any

from torch import Tensor

from truestep.watch.evidence.facts.optimizing import MetricGiven
from truestep.watch.hooks.table import Hook, Observation, put
from truestep.watch.script.tape import Tape

_MAX_NOTED = 512


def watch(tape: Tape) -> None:
    """Note each metric that a scheduler is given."""
    num_noted = 0

    def observe(tape: Tape, scheduler: Any, /, *args: Any, **kwargs: Any) -> Observation:
        """A scheduler is about to judge a metric."""
        nonlocal num_noted
        metric, mode = args[0] if args else kwargs.get("metrics"), vars(scheduler).get("mode")
        if isinstance(metric, Tensor) and metric.is_cpu and metric.numel() == 1:
            metric = float(metric.detach())
        yield
        if isinstance(metric, int | float) and num_noted < _MAX_NOTED:
            num_noted += 1
            tape.note(MetricGiven(tape.number("scheduler", scheduler), str(mode), float(metric)))

    put(tape, [Hook("torch.optim.lr_scheduler.ReduceLROnPlateau.step", observe)], tape)
