"""Values of tensors on an accelerator, read on the host.

Owns the two ways: at once, in the steps that are looked at closely, where the script may wait; and late,
in all others, when the copy has arrived. Neither passes the hooks on tensors: the copy is not the script's.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from truestep.base.device import LateCopy

_to = torch._C.TensorBase.to
_MAX_WAITING = 64


def on_host(tensor: Tensor) -> Tensor:
    """Return the tensor itself, or its copy on the CPU. Waits for the device."""
    return tensor if tensor.is_cpu else _to(tensor.detach(), "cpu")


class LateValues:
    """Numbers on their way from a device, with what is done when they have come."""

    def __init__(self) -> None:
        self._waiting: list[tuple[LateCopy, Callable[[float], None]]] = []

    def add(self, number: Tensor, act: Callable[[float], None]) -> None:
        """Call `act` with a tensor's only value: now if it is on the CPU, else in a later `collect`.

        Nothing is done for what is not one real number.
        """
        if type(number) is not Tensor or number.numel() != 1 or number.is_complex() or number.is_meta:
            return
        if number.is_cpu:
            act(float(number.detach()))
        elif len(self._waiting) < _MAX_WAITING:
            self._waiting.append((LateCopy(number.detach()), act))

    def collect(self) -> None:
        """Act on what has come so far. Does not wait."""
        while self._waiting and self._waiting[0][0].has_arrived():
            copy, act = self._waiting.pop(0)
            act(float(copy.wait()))
