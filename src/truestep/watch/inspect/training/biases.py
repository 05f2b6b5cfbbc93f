"""Biases that a normalisation takes away again: where their layers were made, and what they cost.

Owns the lines at which layers with a bias are made, and measuring the sum that a bias's gradient is.
"""

from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor, nn

from truestep.watch.evidence.facts.passes import BiasAdded, BiasesListed
from truestep.watch.hooks.table import Hook, Observation, put
from truestep.watch.script import parts
from truestep.watch.script.refs import ByIdentity
from truestep.watch.script.tape import Tape

_MAX_NUMEL = 1 << 22
_MAX_MEASURED = 32
_STEP, _TIMES = 1, 3
_NAMES = ("native_batch_norm.default", "_native_batch_norm_legit.default")


def watch(tape: Tape) -> None:
    """Note where layers with a bias are made, and time sums over what normalisations are given."""
    if tape.plan.operations is None:
        return
    biases = _Biases(tape)
    kinds = ("torch.nn.modules.conv._ConvNd", "torch.nn.Linear")
    put(tape, [Hook(f"{kind}.__init__", _Biases.made) for kind in kinds], biases)
    for name in _NAMES:
        tape.read_operation(f"aten.{name}", biases.measure)
    tape.attend(biases, "forward_begins", near=True)


class _Biases:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._sites = ByIdentity[nn.Module, int]()
        self._reported = ByIdentity[nn.Module, bool]()
        self._num_measured = 0

    def made(self, module: nn.Module, /, *_: Any, **__: Any) -> Observation:
        """A layer is made."""
        yield
        if module.bias is not None:
            self._sites[module] = self._tape.sites.here(3)

    def forward_begins(self, module: nn.Module, _args: Any, _kwargs: Any) -> None:
        if module in self._reported or self._tape.num_steps > _STEP:
            return
        self._reported[module] = True
        inner = list(parts.named_modules(module))
        if not any(isinstance(item, nn.modules.batchnorm._BatchNorm) for _, item in inner):
            return
        table = self._tape.sites.table
        made_at = {name: table[self._sites[item]] for name, item in inner if item in self._sites}
        if made_at:
            self._tape.note(BiasesListed(self._tape.number("model", module), made_at))

    def measure(self, index: int, args: tuple[Any, ...], _kwargs: dict[str, Any], _result: Any) -> None:
        """Time the sum over all but the channels: what the gradient of a bias before this costs."""
        given, is_training = args[0], bool(args[5])
        if self._tape.num_steps != _STEP or not is_training or self._num_measured >= _MAX_MEASURED:
            return
        if given.numel() > _MAX_NUMEL or given.device.type != "cpu" or not given.requires_grad:
            return
        self._num_measured += 1
        took_s = min(_time_sum(given.detach()) for _ in range(_TIMES))
        self._tape.note(BiasAdded(index, took_s))


def _time_sum(given: Tensor) -> float:
    axes = [axis for axis in range(given.dim()) if axis != 1]
    begun = perf_counter_ns()
    torch.sum(given, axes)
    return (perf_counter_ns() - begun) / 1e9
