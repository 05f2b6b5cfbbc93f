"""Whether a step moves what it should: weights with a gradient, before and after.

Owns the comparison. A few weights of each parameter, at the steps looked at closely.
"""

import weakref
from dataclasses import dataclass
from time import perf_counter_ns

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from truestep.watch.evidence.facts.optimizing import (
    GradientsZero,
    UnmovedParameter,
    WeightsUnmoved,
)
from truestep.watch.inspect.training.closeness import Closeness
from truestep.watch.inspect.training.names import Names
from truestep.watch.script.refs import Ref
from truestep.watch.script.tape import Tape

_MAX_PARAMETERS = 24
_MAX_WEIGHTS = 512
_MIN_STEPS = 3


def watch(tape: Tape, closeness: Closeness) -> None:
    """Note parameters that no step moves, and optimizers that only get zeros."""
    updates = _Updates(tape, closeness, Names(tape))
    tape.listen(updates, "step_begins", "step_ends", close_look=True)
    tape.listen(updates, "closing")


@dataclass
class _Still:
    """A parameter that no step has moved so far."""

    site: int
    parameter: "weakref.ref[Tensor]"
    facts: UnmovedParameter


class _Updates:
    def __init__(self, tape: Tape, closeness: Closeness, names: Names) -> None:
        self._tape = tape
        self._close = closeness
        self._names = names
        self._before: list[tuple[Tensor, Tensor, Tensor, float, float]] = []
        self._still: dict[tuple[int, int], _Still] = {}
        self._moved: set[tuple[int, int]] = set()
        self._num_looks: dict[int, int] = {}
        self._zeros: dict[int, tuple[int, GradientsZero] | None] = {}
        """By optimizer: at which line its gradients were all zero, in how many steps; None if one was not."""

    def _look_for_zeros(self, optimizer: Optimizer, number: int) -> None:
        usable = [item for group in optimizer.param_groups for item in group["params"] if _is_usable(item)]
        if any(bool(item.grad.any()) for item in usable):
            self._zeros[number] = None
        elif usable:
            known = self._zeros.get(number)
            site, facts = known or (self._tape.sites.here(3), GradientsZero(number, 0, 0))
            facts = facts._replace(num_steps=facts.num_steps + 1, num_parameters=len(usable))
            self._zeros[number] = (site, facts)

    def step_begins(self, optimizer: Optimizer, number: int) -> None:
        self._before = []
        if self._close and self._zeros.get(number, ()) is not None:
            self._look_for_zeros(optimizer, number)
        is_done = self._num_looks.get(number, 0) > 2 * _MIN_STEPS and not self._has_still(number)
        if is_done or not self._close:
            return
        self._num_looks[number] = self._num_looks.get(number, 0) + 1
        usable = [
            (item, float(group["lr"]))
            for group in optimizer.param_groups
            if isinstance(group.get("lr"), int | float)
            for item in group["params"]
            if (number, id(item)) not in self._moved and _is_usable(item)
        ]
        for parameter, rate in usable[:_MAX_PARAMETERS]:
            gradient = _sample(parameter.grad).abs()
            kept = _sample(parameter).clone()
            has_gradient = gradient > 0
            if bool(has_gradient.any()):
                self._before.append((parameter, has_gradient, kept, float(gradient.max()), rate))

    def _has_still(self, number: int) -> bool:
        return any(key[0] == number for key in self._still)

    def step_ends(self, _optimizer: Optimizer, number: int) -> None:
        before, self._before = self._before, []
        for parameter, has_gradient, kept, gradient, rate in before:
            key = (number, id(parameter))
            if bool(((_sample(parameter) != kept) & has_gradient).any()):
                self._moved.add(key)
                self._still.pop(key, None)
            elif bool(kept.isfinite().all()):
                self._keep_still(key, parameter, float(kept[0]), gradient, rate)

    def _keep_still(  # limits: private to this class
        self, key: tuple[int, int], parameter: Tensor, weight: float, gradient: float, rate: float
    ) -> None:
        known = self._still.get(key)
        if known is None or known.parameter() is not parameter:
            shape, dtype = tuple(parameter.shape), str(parameter.dtype).removeprefix("torch.")
            name = self._names.of(parameter)
            facts = UnmovedParameter(name, dtype, shape, self._tape.num_steps, 0, 0, weight, gradient, rate)
            known = self._still[key] = _Still(self._tape.sites.here(2), Ref(parameter), facts)
        facts = known.facts
        if rate > 0 or not facts.rate:
            facts = facts._replace(weight=weight, gradient=gradient, rate=rate)
        known.facts = facts._replace(num_steps=facts.num_steps + 1, num_rated=facts.num_rated + (rate > 0))

    def closing(self) -> None:
        found: dict[tuple[int, int], list[UnmovedParameter]] = {}
        for (number, _), still in self._still.items():
            if still.facts.num_steps >= _MIN_STEPS:
                found.setdefault((number, still.site), []).append(still.facts)
        for (number, site), parameters in found.items():
            num_moved = sum(key[0] == number for key in self._moved)
            facts = WeightsUnmoved(number, parameters[:_MAX_PARAMETERS], num_moved)
            self._tape.mark(facts, site, perf_counter_ns())
        for site, zeros in filter(None, self._zeros.values()):
            if zeros.num_steps >= _MIN_STEPS:
                self._tape.mark(zeros, site, perf_counter_ns())


def _sample(tensor: Tensor) -> Tensor:
    """Return some of a tensor's values, evenly spread."""
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, len(flat) // _MAX_WEIGHTS)]


def _is_usable(parameter: Tensor) -> bool:
    gradient = parameter.grad
    return (
        gradient is not None
        and type(parameter) in (Tensor, nn.Parameter)
        and type(gradient) is Tensor
        and gradient.layout == torch.strided
        and parameter.layout == torch.strided
        and parameter.device.type != "meta"
        and parameter.requires_grad
    )
