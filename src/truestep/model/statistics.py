"""Statistics of one tensor in a few passes over it: what taps keep instead of the tensor itself.

Owns the numbers and how they are computed. When a tensor is looked at is up to those who ask.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_MAX_EXACT = 2**24
"""Up to this many ones a sum in float32 is exact."""
_MIN_SQUARED = 1e-15
"""Squares of values below are lost in float32, or computed slowly."""


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """What one tensor holds. Mean, standard deviation, least and greatest are those of its finite values."""

    count: int
    mean: float
    std: float
    """Of the population: divided by the count, so that one value has 0."""
    min: float
    max: float
    zeros: float
    """Fraction of values that are exactly zero."""
    nonfinite: float
    """Fraction of values that are NaN or infinite."""

    def __str__(self) -> str:
        text = f"mean {self.mean:.4g}, std {self.std:.4g}, {self.min:.4g} to {self.max:.4g}"
        text += f", {self.zeros:.1%} zero" if self.zeros else ""
        return text + (f", {self.nonfinite:.2%} NaN or infinite" if self.nonfinite else "")


def statistics_later(tensor: Tensor) -> Callable[[], Statistics]:
    """Compute the statistics now and give a function that returns them.

    Whole numbers and booleans count as numbers, complex ones by their magnitude, of a sparse tensor those
    that are stored, of a distributed one those that this process has. Off the CPU the numbers stay on the
    device until it is called: the host does not wait in the middle of a step. That path has not been tried
    on a GPU.

    >>> print(statistics_later(torch.tensor([0.0, 1.0, 2.0, float("nan")]))())
    mean 1, std 0.8165, 0 to 2, 25.0% zero, 25.00% NaN or infinite
    """
    with torch.no_grad():
        plain = _plain(tensor.detach())
        if plain.is_cpu:
            found = _on_cpu(plain)
            return lambda: found
        if plain.is_meta or not plain.numel():
            return lambda: _nothing(plain.numel())
        numbers = _masked(plain)
        count = plain.numel()
        return lambda: _from_numbers(count, numbers.tolist())


def _plain(tensor: Tensor) -> Tensor:
    """Return the same values as a strided tensor of floats; no copy if it is one."""
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if tensor.layout is torch.jagged:
        tensor = tensor.values()
    elif tensor.layout is not torch.strided:
        tensor = (tensor.coalesce() if tensor.layout is torch.sparse_coo else tensor).values()
    if tensor.is_complex():
        tensor = tensor.abs()
    if tensor.dtype in (torch.float32, torch.float64):
        return tensor
    # Half and bfloat16 would round the results to three digits, and half overflows at 65504.
    return tensor.to(torch.float32 if tensor.is_floating_point() else torch.float64)


def _on_cpu(tensor: Tensor) -> Statistics:
    # Not `var_mean`, `isfinite` and `count_nonzero`: on a CPU they take ten times as long in all. A NaN or an
    # infinity anywhere makes the norm NaN or infinite, so that nobody has to look for them one by one.
    count = tensor.numel()
    if not count:
        return _nothing(0)
    mean = tensor.mean().item()
    norm = torch.linalg.vector_norm(tensor).item()
    if not (math.isfinite(norm) and math.isfinite(mean)):
        return _on_cpu_carefully(tensor)
    least, greatest = tensor.amin().item(), tensor.amax().item()
    if 0 < max(-least, greatest) < _MIN_SQUARED:
        return _on_cpu_carefully(tensor)
    return Statistics(
        count=count,
        mean=mean,
        std=_spread(tensor, mean=mean, square=norm * norm / count),
        min=least,
        max=greatest,
        zeros=_num_zeros(tensor) / count if least <= 0 <= greatest else 0.0,
        nonfinite=0.0,
    )


def _spread(tensor: Tensor, *, mean: float, square: float) -> float:
    """Return the standard deviation from the mean of squares, or, if rounding would eat it, with a copy."""
    variance = square - mean * mean
    if variance > 0.05 * square:
        return math.sqrt(variance)
    return float(torch.linalg.vector_norm(tensor - mean)) / math.sqrt(tensor.numel())


def _num_zeros(tensor: Tensor) -> int:
    if tensor.numel() > _MAX_EXACT:
        return tensor.numel() - int(torch.count_nonzero(tensor))
    return int(torch.eq(tensor, 0, out=torch.empty_like(tensor)).sum())


def _on_cpu_carefully(tensor: Tensor) -> Statistics:
    """Compute in float64 over the finite values: some are not, or squares do not fit into float32."""
    finite = tensor[torch.isfinite(tensor)].double()
    count, num_finite = tensor.numel(), finite.numel()
    if not num_finite:
        return _nothing(count, nonfinite=1.0)
    scale = max(finite.abs().max().item(), 1.0)  # squares of float64 values overflow as well
    scaled = finite / scale
    return Statistics(
        count=count,
        mean=scaled.mean().item() * scale,
        std=scaled.std(correction=0).item() * scale,
        min=finite.min().item(),
        max=finite.max().item(),
        zeros=int((finite == 0).sum()) / count,
        nonfinite=(count - num_finite) / count,
    )


def _masked(tensor: Tensor) -> Tensor:
    """Compute the same without asking for a single value on the way."""
    finite = torch.isfinite(tensor)
    num_finite = finite.sum()
    mean = torch.where(finite, tensor, 0).sum() / num_finite
    squares = torch.where(finite, tensor - mean, 0).square().sum()
    numbers = [
        mean,
        (squares / num_finite).sqrt(),
        torch.where(finite, tensor, math.inf).amin(),
        torch.where(finite, tensor, -math.inf).amax(),
        (tensor == 0).sum() / tensor.numel(),
        (~finite).sum() / tensor.numel(),
    ]
    return torch.stack([number.to(tensor.dtype) for number in numbers])


def _from_numbers(count: int, numbers: list[float]) -> Statistics:
    mean, std, least, greatest, zeros, nonfinite = numbers
    if nonfinite == 1.0:
        return _nothing(count, nonfinite=1.0)
    return Statistics(
        count=count, mean=mean, std=std, min=least, max=greatest, zeros=zeros, nonfinite=nonfinite
    )


def _nothing(count: int, *, nonfinite: float = 0.0) -> Statistics:
    nan = math.nan
    return Statistics(count=count, mean=nan, std=nan, min=nan, max=nan, zeros=0.0, nonfinite=nonfinite)
