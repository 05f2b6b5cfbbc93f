"""Biases that a normalisation takes away again: where their layers were made, and what they cost.

Owns the lines at which layers with a bias are made, and measuring the sum that a bias's gradient is.
"""

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from truestep.watch import parts
from truestep.watch.refs import ByIdentity
from truestep.watch.tape import Tape
from truestep.watch.wrap import Wraps, drop_frame

_MAX_NUMEL = 1 << 22
_MAX_MEASURED = 32
_STEP, _TIMES = 1, 3
_NAMES = ("native_batch_norm.default", "_native_batch_norm_legit.default")


def watch(tape: Tape, wraps: Wraps) -> None:
    """Note where layers with a bias are made, and time sums over what normalisations are given."""
    if tape.plan.operations is None:
        return
    biases = _Biases(tape)
    for kind in (_ConvNd, nn.Linear):
        wraps.put("__init__", lambda make: _wrap_init(make, biases), kind)
    for name in _NAMES:
        tape.readers[f"aten.{name}"] = biases.measure
    tape.near["forward_begins"].append(biases.forward_begins)


def _wrap_init(make: Callable[..., Any], biases: "_Biases") -> Callable[..., Any]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        try:
            result = make(self, *args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise
        biases.meet(self)
        return result

    return __init__


class _Biases:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._sites = ByIdentity[nn.Module, int]()
        self._told = ByIdentity[nn.Module, bool]()
        self._num_measured = 0

    def meet(self, module: nn.Module) -> None:
        if self._tape.is_on and module.bias is not None:
            self._sites[module] = self._tape.sites.here(3)

    def forward_begins(self, module: nn.Module, _args: Any, _kwargs: Any) -> None:
        if module in self._told or self._tape.num_steps > _STEP:
            return
        self._told[module] = True
        inner = list(parts.named_modules(module))
        if not any(isinstance(item, nn.modules.batchnorm._BatchNorm) for _, item in inner):
            return
        table = self._tape.sites.table
        value = {name: table[self._sites[item]] for name, item in inner if item in self._sites}
        if value:
            self._tape.note("biases", self._tape.number("model", module), value=value)

    def measure(self, index: int, args: tuple[Any, ...], _kwargs: dict[str, Any], _result: Any) -> None:
        """Time the sum over all but the channels: what the gradient of a bias before this costs."""
        given, is_training = args[0], bool(args[5])
        if self._tape.num_steps != _STEP or not is_training or self._num_measured >= _MAX_MEASURED:
            return
        if given.numel() > _MAX_NUMEL or given.device.type != "cpu" or not given.requires_grad:
            return
        self._num_measured += 1
        took_s = min(_time_sum(given.detach()) for _ in range(_TIMES))
        self._tape.note("bias_sum", value={"index": index, "took_s": took_s})


def _time_sum(given: Tensor) -> float:
    axes = [axis for axis in range(given.dim()) if axis != 1]
    begun = perf_counter_ns()
    torch.sum(given, axes)
    return (perf_counter_ns() - begun) / 1e9
