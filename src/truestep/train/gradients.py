"""Gradients between backward and the optimizer: summed over lanes, checked, scaled, clipped.

Owns `parameter.grad` of every tracked parameter while a step lasts.
"""

import operator
from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_value_, clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from truestep.dist import LaneSum, add_tensors
from truestep.errors import UsageError

Gradient = torch.Tensor | None


class Gradients:
    """The gradients of all parameters of the tracked optimizers.

    With one lane they are left where backward put them; `end_lane` and `reduce` are for several.
    """

    def __init__(self, tracked: Mapping[str, Any]) -> None:
        self._optimizers = {
            id(item): (name, item) for name, item in tracked.items() if isinstance(item, Optimizer)
        }
        self._names = {
            id(parameter): f"{name}.{path}"
            for name, module in tracked.items()
            if isinstance(module, nn.Module)
            for path, parameter in module.named_parameters()
        }
        self._of: dict[int, list[nn.Parameter]] = {}
        self._num_groups: dict[int, int] = {}
        self._all: list[nn.Parameter] = []
        self._sum = LaneSum[list[Gradient]](add_tensors)
        self._gather()

    def _gather(self) -> None:
        self._of = {
            key: [parameter for group in optimizer.param_groups for parameter in group["params"]]
            for key, (_, optimizer) in self._optimizers.items()
        }
        self._num_groups = {key: len(item.param_groups) for key, (_, item) in self._optimizers.items()}
        unique = {id(parameter): parameter for parameters in self._of.values() for parameter in parameters}
        self._all = list(unique.values())

    def of(self, optimizer: Optimizer) -> list[nn.Parameter]:
        """Return an optimizer's parameters; one that is not tracked is refused: resume would lose it."""
        parameters = self._of.get(id(optimizer))
        if parameters is None:
            tracked = ", ".join(name for name, _ in self._optimizers.values()) or "none"
            raise UsageError(
                f"this {type(optimizer).__name__} is not tracked (tracked optimizers: {tracked}), so a "
                f"resumed run would lose its state. Call run.track(optimizer=optimizer) before run.steps()."
            )
        if len(optimizer.param_groups) != self._num_groups[id(optimizer)]:  # one was added since
            self._gather()
            parameters = self._of[id(optimizer)]
        return parameters

    def clear(self) -> None:
        """Forget all gradients: what the next backward gives is new."""
        for parameter in self._all:
            parameter.grad = None

    def end_lane(self, lane: int) -> None:
        """Take one lane's gradients into the sum over lanes."""
        gradients = [parameter.grad for parameter in self._all]
        if any(gradient is not None and gradient.is_sparse for gradient in gradients):
            raise UsageError(
                "sparse gradients cannot be summed over lanes in a fixed order. "
                "Use sparse=False in the embedding, or lanes=1."
            )
        self._sum.push(lane, gradients)
        self.clear()

    def reduce(self) -> None:
        """Put the sum over all lanes where the optimizers look for it."""
        for parameter, gradient in zip(self._all, self._sum.take(), strict=True):
            parameter.grad = gradient

    def named(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the gradients that are there with their parameters' names."""
        for index, parameter in enumerate(self._all):
            if parameter.grad is not None:
                yield self._names.get(id(parameter), f"parameter {index}"), parameter.grad


class FiniteCheck:
    """Looks whether gradients are finite, in one pass over memory and without temporaries.

    On the CPU the answer is there at once. Elsewhere asking for it would make the loop wait for the device:
    a fused optimizer is given the flag instead and leaves the update out by itself (tested on the CPU only).
    """

    def __init__(self, device: torch.device) -> None:
        self.defers = device.type != "cpu"
        self._one = torch.ones((), dtype=torch.float32, device=device)
        self._found = torch.zeros((), dtype=torch.float32, device=device)

    def __call__(self, gradients: list[torch.Tensor]) -> bool:
        """Return whether all values of all gradients are finite."""
        try:
            # The operation behind torch.amp.GradScaler. It also multiplies: by one, which changes nothing.
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, self._found, self._one)
        except NotImplementedError:  # for sparse ones
            values = [gradient._values() if gradient.is_sparse else gradient for gradient in gradients]
            torch._amp_foreach_non_finite_check_and_unscale_(values, self._found, self._one)
        if self._found.item() == 0.0:
            return True
        self._found.zero_()
        return False

    def step(
        self,
        optimizer: Optimizer,
        gradients: list[torch.Tensor],
        *,
        losses: list[torch.Tensor],
        is_sticky: bool,
    ) -> torch.Tensor:
        """Update the parameters on the device unless something is not finite; return the flag that tells.

        A sticky flag stays up: until somebody has read it, no later step changes the weights either.
        """
        if not is_sticky:
            self._found.zero_()
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, self._found, self._one)
        for loss in losses:
            self._found.logical_or_(~torch.isfinite(loss))
        flag = self._found.clone()
        optimizer.found_inf, optimizer.grad_scale = flag, None  # type: ignore[attr-defined]
        try:
            optimizer.step()
        finally:
            del optimizer.found_inf, optimizer.grad_scale  # type: ignore[attr-defined]
        return flag


def scale(gradients: list[torch.Tensor], factor: float | torch.Tensor) -> None:
    """Multiply gradients by a factor."""
    torch._foreach_mul_(gradients, factor)


def clip(parameters: list[nn.Parameter], *, norm: float | None, value: float | None) -> torch.Tensor | None:
    """Clip gradients by total norm, by value, or both in this order; return the norm before clipping."""
    total: torch.Tensor | None = None
    if norm is not None:
        total = get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
        clip_grads_with_norm_(parameters, norm, total)
    if value is not None:
        clip_grad_value_(parameters, value)
    return total


def total_weight(weights: Mapping[int, float | torch.Tensor]) -> float | torch.Tensor:
    """Add the lanes' weights. Whole numbers are exact in any order, so this needs no tree yet."""
    values = weights.values()
    return next(iter(values)) if len(values) == 1 else reduce(operator.add, values)
