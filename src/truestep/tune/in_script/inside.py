"""Inside the script's process: it takes turns with others at the ends of steps, and tells how long each took.

Owns the child's side of a race (`race` has the other), what is told of the script there, and how a knob gets
hold of models. Runs in somebody's process: nothing here may raise or draw.
"""

import json
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter_ns
from typing import Any
from weakref import WeakSet

import torch
from torch import nn

from truestep.base.device import module_in_use, peak_bytes
from truestep.base.lifetime import end_with_parent
from truestep.tune.in_script.facts_so_far import FactsSoFar
from truestep.watch.script.tape import Tape

_MAX_LOSSES = 64
"""Backward passes in one step of which the loss is kept."""


def take_turns(value: dict[str, Any], tape: Tape) -> None:
    """Stop after the first steps and whenever a turn is over; go on when told to, by the socket `channel`."""
    _end_with_parent()
    os.register_at_fork(after_in_child=_end_with_parent)  # loader workers
    _Turns(socket.socket(fileno=value["channel"]), tape, num_steps=value["steps"])


def on_model(tape: Tape, change: Callable[[nn.Module], None]) -> None:
    """Call `change` once for each outermost module that is trained, just before its first forward pass."""
    met: WeakSet[nn.Module] = WeakSet()  # not ids: a script that makes many models has them again

    def meet(module: nn.Module, _args: Any, _kwargs: Any) -> None:
        # Whether it is in training mode says nothing: fine-tuning in eval mode is training too.
        if module in met or not torch.is_grad_enabled():
            return
        met.add(module)
        if any(parameter.requires_grad for parameter in module.parameters()):
            change(module)

    tape.listen(forward_begins=meet)


class _Turns:
    """What the parent is told: when each step of the turn ended, with which loss."""

    def __init__(self, channel: socket.socket, tape: Tape, *, num_steps: int) -> None:
        self._channel, self._tape = channel, tape
        self._lines = channel.makefile("rb")
        self._pid = os.getpid()
        self._facts_seen = FactsSoFar(tape)
        self._steps_left = num_steps
        self._begun_ns = perf_counter_ns()
        self._ends: list[int] = []
        self._losses: list[list[torch.Tensor]] = []
        self._of_step: list[torch.Tensor] = []
        self._is_left = False
        tape.listen(backward_begins=self._take_losses, closing=self._close)
        tape.follow_steps(self._end_step)

    def _take_losses(self, losses: tuple[torch.Tensor, ...], how: str) -> None:
        is_one = how == "backward" and len(losses) == 1 and losses[0].numel() == 1
        if is_one and len(self._of_step) < _MAX_LOSSES:
            self._of_step.append(losses[0].detach())

    def _end_step(self) -> None:
        if self._is_left:
            return
        self._losses.append(self._of_step)
        self._of_step = []
        self._steps_left -= 1
        if self._steps_left == 0:
            _wait_for_device()
        self._ends.append(perf_counter_ns())
        if self._steps_left == 0:
            self._hand_over()

    def _hand_over(self) -> None:
        """Tell what the turn gave, and wait for the next one."""
        self._send("turn")
        words = self._lines.readline().split()
        if not words or words[0] != b"go":
            self._leave()
            return
        self._steps_left = int(words[1])
        self._ends, self._losses = [], []
        _wait_for_device()
        self._begun_ns = perf_counter_ns()

    def _send(self, kind: str, **more: Any) -> None:
        message = {
            "kind": kind,
            "ends_ns": [end - self._begun_ns for end in self._ends],
            "losses": [_mean(losses) for losses in self._losses],
            "peak_bytes": peak_bytes(),
            **self._facts_seen.changed(),
            **more,
        }
        try:
            self._channel.sendall(json.dumps(message).encode() + b"\n")
        except OSError:  # nobody listens any more
            self._leave()

    def _leave(self) -> None:
        """End the script at its next step."""
        self._tape.is_over = True
        self._is_left = True

    def _close(self) -> None:
        if os.getpid() == self._pid and not self._is_left:
            self._is_left = True
            error = self._tape.failed_with
            is_exit = isinstance(error, SystemExit) and not error.code
            self._send("end", has_failed=error is not None and not is_exit)


def _end_with_parent() -> None:
    with suppress(OSError, AttributeError):
        end_with_parent(os.getppid())


def _mean(losses: list[torch.Tensor]) -> float | None:
    values = [float(loss) for loss in losses]
    return sum(values) / len(values) if values else None


def _wait_for_device() -> None:
    if module_in_use() is not None:
        torch.accelerator.synchronize()
