"""Inside the script's process: the learning rate rises from step to step, and each step's loss is told.

Owns the child's side of the range test (`learning_rate` has the other) and when the sweep ends. Runs in
somebody's process: nothing here may raise or draw. The script reads its own learning rates all the time.
"""

import math
from typing import Any

import torch
from torch.optim import Optimizer

from truestep.watch.hooks.table import Hook, Observation, put
from truestep.watch.script.tape import Tape

MAX_RISE = 4.0
"""The sweep ends where the smoothed loss is so many times the best before."""
_OWN_NAMES = ("max_lr", "initial_lr", "lr")
"""Where a group has the rate that the script means: schedulers that begin low keep it under the first two."""


def sweep(value: dict[str, Any], tape: Tape) -> None:
    """Give step k the rate `low * (high / low) ** (k / (steps - 1))`; end the script when it has diverged."""
    _Sweep(value, tape)


def rate_at(index: int, *, low: float, high: float, steps: int) -> float:
    """Return the rate of a step of the sweep, counted from 0."""
    return float(low * (high / low) ** (index / max(1, steps - 1)))


class Smooth:
    """An exponential average of what was seen so far, without the pull towards zero at the beginning."""

    def __init__(self, beta: float) -> None:
        self._beta, self._sum, self._weight = beta, 0.0, 0.0

    def add(self, value: float) -> float:
        """Take one more value and return the average."""
        self._sum = self._beta * self._sum + (1 - self._beta) * value
        self._weight = self._beta * self._weight + (1 - self._beta)
        return self._sum / self._weight


class Divergence:
    """Tells when losses have left the best of them far behind."""

    def __init__(self, *, steps: int, beta: float) -> None:
        self._num_free = max(1, steps // 10)
        self._smooth, self._num = Smooth(beta), 0
        self._first = self._best = math.inf

    def is_reached(self, loss: float) -> bool:
        """Take the loss of the next step."""
        if not math.isfinite(loss):
            return True
        smoothed = self._smooth.add(loss)
        self._num += 1
        self._first = smoothed if self._num == 1 else self._first
        self._best = min(self._best, smoothed)
        # A loss that falls below zero has no multiple of its best: then what was gained is the measure.
        scale = self._best if self._best > 0 else max(-self._best, self._first - self._best)
        return self._num > self._num_free and smoothed - self._best > (MAX_RISE - 1) * scale


class _Sweep:
    """Where the sweep stands, and what the step that is under way has given."""

    def __init__(self, value: dict[str, Any], tape: Tape) -> None:
        self._tape = tape
        self._low, self._high, self._num_steps = value["low"], value["high"], value["steps"]
        self._divergence = Divergence(steps=value["steps"], beta=value["beta"])
        self._index = -1
        self._stepped: set[int] = set()
        self._is_first = self._is_inside = False
        """Whether the optimizer is the first of those that take turns, and whether it is making its step."""
        self._before: list[float] = []
        self._pending: list[float] = []
        """Losses since the last step, and those before the step that is under way."""
        self._factor = 1.0
        """By what the script has multiplied the loss of the next backward pass."""
        self._shares: dict[int, list[float | None]] = {}
        self._own: list[tuple[dict[str, Any], Any]] = []
        tape.listen(backward_begins=self._take_loss, step_begins=self._begin_step, step_ends=self._end_step)
        put(tape, [Hook("torch.amp.GradScaler.scale", _Sweep._take_factor)], self)

    def _take_loss(self, losses: tuple[torch.Tensor, ...], how: str) -> None:
        factor, self._factor = self._factor, 1.0
        if how != "backward" or len(losses) != 1 or losses[0].numel() != 1:
            return
        loss = float(losses[0].detach()) / factor
        self._pending.append(loss)
        if not math.isfinite(loss):  # told at once: the script, or its scaler, may leave the step out
            self._write(self._index if self._is_inside else self._index + 1, [loss])

    def _begin_step(self, optimizer: Optimizer, number: int) -> None:
        self._before, self._pending = self._pending, []
        self._is_inside = True
        self._is_first = number in self._stepped or not self._stepped
        if self._is_first:
            self._stepped.clear()
            self._index += 1
        self._stepped.add(number)
        if self._index >= self._num_steps:
            self._tape.stop()
            return
        if number not in self._shares:
            self._meet(optimizer, number)
        rate = rate_at(self._index, low=self._low, high=self._high, steps=self._num_steps)
        self._own = [
            (group, _put_rate(group, rate * share))
            for group, share in zip(optimizer.param_groups, self._shares[number], strict=False)
            if share is not None
        ]

    def _end_step(self, _optimizer: Optimizer, _number: int) -> None:
        # A closure is called in the step; if more than once, then for weights on the way.
        losses, self._pending = [*self._before, *self._pending[:1]], []
        self._is_inside = False
        if (
            self._is_first and not self._tape.is_over
        ):  # of several that take turns the loss is the first one's
            self._write(self._index, losses)
        for group, own in self._own:
            _put_rate(group, own)
        self._own = []
        if self._index + 1 >= self._num_steps and self._stepped >= set(self._shares):
            self._tape.stop()

    def _meet(self, optimizer: Optimizer, number: int) -> None:
        rates = [_own_rate(group) for group in optimizer.param_groups]
        largest = max((rate for rate in rates if rate is not None), default=0.0)
        self._shares[number] = [
            None if rate is None else rate / largest if largest > 0 else 1.0 for rate in rates
        ]
        self._tape.write(
            "swept", what="optimizer", name=type(optimizer).__qualname__, number=number, rates=rates
        )

    def _write(self, index: int, losses: list[float]) -> None:
        loss = sum(losses) / len(losses) if losses else None
        is_last = loss is not None and self._divergence.is_reached(loss)
        self._tape.write("swept", what="step", index=index, loss=loss, is_diverged=is_last)
        if is_last:
            self._tape.stop()  # a step that is under way is still made, and no other

    def _take_factor(self, scaler: Any, _outputs: Any) -> Observation:
        yield
        self._factor = float(scaler.get_scale()) if scaler.is_enabled() else 1.0


def _own_rate(group: dict[str, Any]) -> float | None:
    """Return the rate that the script means for a group; None if it has none that can be set."""
    if not isinstance(group.get("lr"), int | float | torch.Tensor):
        return None
    for name in _OWN_NAMES:
        if isinstance(group.get(name), int | float | torch.Tensor):
            return float(group[name])
    return None


def _put_rate(group: dict[str, Any], rate: Any) -> Any:
    """Set a group's rate and return the one before. A tensor stays the same one: compiled steps hold it."""
    current = group["lr"]
    if isinstance(current, torch.Tensor):
        before = current.detach().clone()
        with torch.no_grad():
            current.copy_(rate) if isinstance(rate, torch.Tensor) else current.fill_(rate)
        return before
    group["lr"] = rate
    return current
