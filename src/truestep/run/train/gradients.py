"""Gradients between backward and the optimizer: summed over lanes, checked, scaled, clipped.

Owns which parameters there are and who sums their gradients. How they are summed is `dist`'s.
"""

import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from truestep.base.bits import real_values, witness
from truestep.errors import UsageError
from truestep.run.dist import Schedule, World
from truestep.run.dist.flat import FlatSum
from truestep.run.dist.reduce import TreeReduce


class Gradients:
    """The gradients of all parameters of the tracked optimizers.

    With one lane they are left where backward put them; all but `of`, `clear` and `named` is for several.
    `sums` are those that models were placed with; parameters that belong to none are summed after backward.
    """

    def __init__(
        self, tracked: Mapping[str, Any], *, tree: TreeReduce, sums: Sequence[Any] = (), is_tied: bool = False
    ) -> None:
        self._optimizers = {
            id(item): (name, item) for name, item in tracked.items() if isinstance(item, Optimizer)
        }
        self._names = {
            id(parameter): f"{name}.{path}"
            for name, module in tracked.items()
            if isinstance(module, nn.Module)
            for path, parameter in module.named_parameters()
        }
        self._tree, self._placed, self._is_tied = tree, list(sums), is_tied
        self._of: dict[int, list[nn.Parameter]] = {}
        self._num_groups: dict[int, int] = {}
        self._all: list[nn.Parameter] = []
        self._sums: list[Any] = []
        self._single: set[int] = set()
        """Numbers of passes whose lanes are known to have one backward each."""
        self._gather()

    def _gather(self) -> None:
        self._of = {
            key: [parameter for group in optimizer.param_groups for parameter in group["params"]]
            for key, (_, optimizer) in self._optimizers.items()
        }
        self._num_groups = {key: len(item.param_groups) for key, (_, item) in self._optimizers.items()}
        unique = {id(parameter): parameter for parameters in self._of.values() for parameter in parameters}
        placed = {id(parameter) for item in self._placed for parameter in item.parameters}
        rest = [parameter for key, parameter in unique.items() if key not in placed]
        self._sums = [*self._placed, FlatSum(rest, self._tree)] if rest else self._placed
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
        if len(optimizer.param_groups) != self._num_groups[id(optimizer)]:
            name, _ = self._optimizers[id(optimizer)]
            raise UsageError(
                f"a parameter group was added to {name} inside a step, after its lanes began. "
                f"Add it between steps."
            )
        return parameters

    def _look_for_groups(self) -> None:
        """Take in parameter groups that were added since the last pass."""
        for key, (_, optimizer) in self._optimizers.items():
            if len(optimizer.param_groups) != self._num_groups[key]:
                self._gather()
                return

    def clear(self) -> None:
        """Forget all gradients: what the next backward gives is new."""
        self._look_for_groups()
        for parameter in self._all:
            parameter.grad = None

    def begin(self, schedule: Schedule, *, number: int, has_watched: bool) -> None:
        """Start a step's pass of this number, in which some lane may be watched.

        Sums may overlap with backward once the lanes of such a pass are known to have one each. With a
        witness they must not: no lane's own gradient is ever there to be looked at.
        """
        self._look_for_groups()
        # bits: tied to the number of processes, sums that overlap have other bits: they always do then.
        is_known = number in self._single or self._is_tied
        may_overlap = is_known and not has_watched
        for item in self._sums:
            item.clear()
            item.begin(schedule, may_overlap=may_overlap)

    def check_repeated(self) -> None:
        """Refuse a lane's second backward where the first one's gradients are on their way already."""
        if any(item.sends_early for item in self._sums):
            raise UsageError(
                "step.backward was called twice in one lane, and gradients are summed over processes while "
                "backward runs: with parallel='ddp' after a first step with one call in each lane, with "
                "'fsdp' always. Add the losses and call step.backward once, or pass parallel='flat' to "
                "run.place."
            )

    def learn(self, number: int, *, is_repeated: bool) -> None:
        """Take in what all processes saw: whether a lane of this pass had several backwards."""
        if is_repeated:
            self._single.discard(number)
        else:
            self._single.add(number)

    def begin_lane(self, turn: int | None, *, is_watched: bool = False) -> None:
        """Start this process's lane of one round; None for one that no sum takes in."""
        for item in self._sums:
            item.begin_lane(turn, is_watched=is_watched)

    def witness(self) -> int:
        """Return a witness of the gradients that this process's lane has just given."""
        value = witness(
            parameter.grad
            for parameter in self._all
            if parameter.grad is not None and not _is_sharded(parameter.grad)
        )
        for item in self._sums:
            value ^= item.witness
        return value

    def hashes(self) -> Iterator[int]:
        """Yield a hash for each gradient that this process's lane has just given."""
        for parameter in self._all:
            gradient = parameter.grad
            yield 0 if gradient is None or _is_sharded(gradient) else witness([gradient])
        for item in self._sums:
            yield item.witness

    def end_lane(self, lane: int | None) -> None:
        """Take one lane's gradients into the sum over lanes; None if it is not this process's own."""
        for item in self._sums:
            item.end_lane(lane)

    def reduce(self) -> None:
        """Put the sum over all lanes where the optimizers look for it."""
        for item in self._sums:
            item.finish()

    def named(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the gradients that are there with their parameters' names."""
        for index, parameter in enumerate(self._all):
            if parameter.grad is not None:
                yield self._names.get(id(parameter), f"parameter {index}"), local(parameter.grad)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor that this process holds: all of it unless it is sharded."""
    # By its attribute: importing DTensor takes longer than all of truestep.
    part: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return part


def _is_sharded(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "_local_tensor")


class FiniteCheck:
    """Looks whether gradients are finite, in one pass over memory and without temporaries.

    On the CPU the answer is there at once. Elsewhere asking for it would make the loop wait for the device:
    a fused optimizer is given the flag instead and leaves the update out by itself.
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
        except NotImplementedError:  # for sparse and complex ones
            values = [
                real_values(gradient._values() if gradient.is_sparse else gradient) for gradient in gradients
            ]
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


def clip_in_order(gradients: list[torch.Tensor], *, norm: float, total: torch.Tensor) -> None:
    """Clip gradients by their total norm, the same to the bit however gradients are sharded."""
    factor = torch.clamp(norm / (total + 1e-6), max=1.0).to(torch.float32)
    # bits: times one changes nothing. On a device it is done all the same: asking would make it wait.
    if factor.device.type != "cpu" or factor.item() != 1.0:
        torch._foreach_mul_(gradients, factor)


def total_norm(gradients: list[torch.Tensor], *, world: World) -> torch.Tensor:
    """Return the norm of all gradients together, from the norms of their rows, added in one order.

    Sharding cuts between rows, never inside one, and a row's norm is the same however many are computed.
    It is the same on all processes, so all of them can judge by it.
    """
    total = _norm_of_rows(gradients, world=world, is_quick=True)
    if total.device.type == "cpu" and not math.isfinite(total):
        # Squares of large numbers that float32 cannot hold, perhaps; float64 can.
        total = _norm_of_rows(gradients, world=world, is_quick=False)
    return total


def _norm_of_rows(gradients: list[torch.Tensor], *, world: World, is_quick: bool) -> torch.Tensor:
    # bits: the rows' norms are put together first and summed at once, by every process alike.
    rows = [_row_norms(local(gradient), is_quick=is_quick) for gradient in gradients]
    if any(map(_is_sharded, gradients)):
        rows = _whole_rows(gradients, rows, world)
    return torch.cat(rows).square().sum().sqrt()


def _row_norms(gradient: torch.Tensor, *, is_quick: bool) -> torch.Tensor:
    if gradient.ndim < 2:
        return gradient.reshape(-1).abs().to(torch.float64)
    flat = gradient.reshape(gradient.shape[0], gradient.shape[1:].numel())
    # One row is short enough for float32, whose norm takes a seventh of the time on the CPU.
    is_quick = is_quick and gradient.dtype == torch.float32 and gradient.device.type == "cpu"
    norms: torch.Tensor = torch.linalg.vector_norm(flat, dim=1, dtype=None if is_quick else torch.float64)
    return norms.to(torch.float64)


def _whole_rows(gradients: list[torch.Tensor], rows: list[torch.Tensor], world: World) -> list[torch.Tensor]:
    """Return the rows' norms of whole gradients, of which each process has computed its own."""
    lengths = [gradient.shape[0] if gradient.ndim else 1 for gradient in gradients]
    whole = list(rows[0].new_zeros(sum(lengths)).split(lengths))
    for gradient, own, target in zip(gradients, rows, whole, strict=True):
        if _is_sharded(gradient):
            # FSDP2 gives every process the same number of rows, rounded up, and the last ones what is left.
            first = min(-(-len(target) // world.size) * world.rank, len(target))
            target[first : first + len(own)] = own
    base = whole[0]._base if whole[0]._base is not None else whole[0]
    world.add(base)
    return [
        target if _is_sharded(gradient) else own
        for gradient, own, target in zip(gradients, rows, whole, strict=True)
    ]


def total_weight(weights: Iterable[float | torch.Tensor]) -> float | torch.Tensor:
    """Add the lanes' weights in lane order, in float64."""
    return reduce(operator.add, map(_as_float64, weights))


def _as_float64(value: float | torch.Tensor) -> float | torch.Tensor:
    if isinstance(value, torch.Tensor) and value.device.type != "cpu":
        return value.to(torch.float64)
    return float(value)
