"""Metrics that a scheduler is given: their values, and which direction it takes for better.

Owns reading them from `ReduceLROnPlateau`, the one scheduler that goes by a metric.
"""

from math import isfinite
from typing import Any

from torch import Tensor

from truestep.watch.evidence.facts.optimizing import MetricGiven
from truestep.watch.hooks.table import Hook, Observation, put
from truestep.watch.script.tape import Tape

_MAX_NOTED = 512


def watch(tape: Tape) -> None:
    """Note each metric that a scheduler is given."""
    put(tape, [Hook("torch.optim.lr_scheduler.ReduceLROnPlateau.step", _Metrics.observe)], _Metrics(tape))


class _Metrics:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._num_noted = 0

    def observe(self, scheduler: Any, /, *args: Any, **kwargs: Any) -> Observation:
        """A scheduler is about to judge a metric."""
        value = _read(args[0] if args else kwargs.get("metrics"))
        mode = vars(scheduler).get("mode")
        yield
        if value is not None and mode in ("min", "max") and self._num_noted < _MAX_NOTED:
            self._num_noted += 1
            self._tape.note(MetricGiven(self._tape.number("scheduler", scheduler), mode, value))


def _read(metric: Any) -> float | None:
    """Return a number that costs no waiting for a device."""
    if isinstance(metric, Tensor) and (metric.device.type != "cpu" or metric.numel() != 1):
        return None
    try:
        value = float(metric.detach() if isinstance(metric, Tensor) else metric)
    except (TypeError, ValueError, RuntimeError):
        return None
    return value if isfinite(value) else None
