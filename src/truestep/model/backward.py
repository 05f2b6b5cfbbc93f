"""A function's backward pass against finite differences: whether its gradients are those of its values.

Owns the comparison. Which functions need it is up to the user: those whose backward was written by hand.
torch's gradcheck tells no element, and refuses functions that draw or that compute in float32 inside.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from truestep import rng
from truestep.errors import UsageError
from truestep.model.nests import tensors_in

_MOST_ELEMENTS = 64
"""How many elements of an input are moved; of a larger one, these many are chosen at random."""


@dataclass(frozen=True, kw_only=True)
class InputGradient:
    """One input, at the element that is off most: what backward gives and what the differences give."""

    index: int
    element: tuple[int, ...]
    given: float | None
    """None where backward gives no gradient."""
    expected: float
    is_right: bool

    def __str__(self) -> str:
        if self.is_right:
            return f"input {self.index}: right"
        given = "no gradient" if self.given is None else f"{self.given:.6g}"
        where = f" at {list(self.element)}" if self.element else ""
        return f"input {self.index}: wrong{where}: backward gives {given}, differences {self.expected:.6g}"


@dataclass(frozen=True, kw_only=True, repr=False)
class Backward:
    """What `check_backward` found, for each floating input."""

    inputs: tuple[InputGradient, ...]

    @property
    def is_right(self) -> bool:
        """Whether the gradients of all inputs agree with finite differences."""
        return all(found.is_right for found in self.inputs)

    def __str__(self) -> str:
        return "\n".join(map(str, self.inputs))

    __repr__ = __str__  # for notebooks


def check_backward(function: Callable[..., Any], inputs: Tensor | Sequence[Any]) -> Backward:
    """Compare the gradients that a function's backward pass gives with finite differences.

    For a backward that somebody wrote: pass `apply` of a `torch.autograd.Function`, and its inputs. It runs
    on copies of them, floating ones in float64, with the same random numbers each time. An output of several
    elements is weighed with random numbers first. The inputs must not lie at a kink, where no derivative is.
    A backward that differs on purpose (a straight-through estimator) is reported as wrong: it does differ.

    >>> class Cube(torch.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return x**3
    ...
    ...     @staticmethod
    ...     def backward(ctx, gradient):
    ...         return gradient * 2 * ctx.saved_tensors[0] ** 2  # should be 3
    >>> check_backward(Cube.apply, torch.tensor(2.0)).is_right
    False
    """
    given = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    copies = [_as_double(each) for each in given]
    places = [place for place, each in enumerate(copies) if _is_floating(each)]
    if not places:
        raise UsageError("no input is a floating tensor, so none has a gradient. Pass one that has.")
    leaves = {place: copies[place].clone().requires_grad_() for place in places}
    value, eps = _value(function, [leaves.get(place, each) for place, each in enumerate(copies)])
    if not value.requires_grad:
        raise UsageError(
            "what the function returns has no gradient: it was computed outside autograd."
            " Pass `apply` of the torch.autograd.Function, not its forward."
        )
    gradients = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    return Backward(
        inputs=tuple(
            _compare(function, copies, place=place, gradient=gradient, eps=eps)
            for place, gradient in zip(places, gradients, strict=True)
        )
    )


def _compare(
    function: Callable[..., Any], copies: list[Any], *, place: int, gradient: Tensor | None, eps: float
) -> InputGradient:
    tensor = copies[place]
    chosen = torch.arange(tensor.numel())
    if len(chosen) > _MOST_ELEMENTS:
        chosen = torch.randperm(len(chosen), generator=torch.Generator().manual_seed(0))[:_MOST_ELEMENTS]

    def move(element: int, by: float) -> float:
        other = tensor.clone()
        other.view(-1)[element] += by
        with torch.no_grad():
            return float(_value(function, [*copies[:place], other, *copies[place + 1 :]])[0])

    found = [
        _difference(partial(move, element), at=float(tensor.view(-1)[element]), eps=eps)
        for element in chosen.tolist()
    ]
    expected, errors = torch.tensor(found, dtype=torch.float64).unbind(1)
    computed = torch.zeros_like(expected) if gradient is None else gradient.reshape(-1)[chosen].double()
    scale = torch.maximum(computed.abs(), expected.abs()).nan_to_num().max()
    off = ((computed - expected).abs() - errors - eps ** (1 / 3) * scale).nan_to_num(nan=torch.inf)
    worst = int(off.argmax())
    index = torch.unravel_index(chosen[worst], tensor.shape)
    return InputGradient(
        index=place,
        element=tuple(map(int, index)),
        given=None if gradient is None else float(computed[worst]),
        expected=float(expected[worst]),
        is_right=float(off[worst]) <= 0,
    )


def _difference(move: Callable[[float], float], *, at: float, eps: float) -> tuple[float, float]:
    """Return the slope between values to both sides, and how far off it may be."""
    # Where rounding, which grows as the step shrinks, and curvature weigh about the same.
    step = eps ** (1 / 3) * max(1.0, abs(at))
    values = [move(by * step) for by in (1, -1, 2, -2)]
    near, far = (values[0] - values[1]) / (2 * step), (values[2] - values[3]) / (4 * step)
    rounding = 10 * eps * max(map(abs, values)) / step
    return near, abs(near - far) + rounding


def _value(function: Callable[..., Any], inputs: list[Any]) -> tuple[Tensor, float]:
    """Return one number for all that the function gives, and how finely it was computed."""
    with rng.kept_generators():
        rng.seed_generators(0, "check backward")
        outputs = [tensor for _, tensor in tensors_in(function(*inputs)) if tensor.is_floating_point()]
    if not outputs:
        raise UsageError("the function returned no floating tensor, so there is no gradient to compare.")
    noise = torch.Generator().manual_seed(1)
    parts = [
        (tensor.double() * torch.randn(tensor.shape, generator=noise, dtype=torch.float64)).sum()
        for tensor in outputs
    ]
    return torch.stack(parts).sum(), max(torch.finfo(tensor.dtype).eps for tensor in outputs)


def _is_floating(thing: Any) -> bool:
    return isinstance(thing, Tensor) and thing.is_floating_point() and thing.numel() > 0


def _as_double(thing: Any) -> Any:
    if not isinstance(thing, Tensor):
        return thing
    copied = thing.detach().cpu().clone(memory_format=torch.contiguous_format)
    return copied.double() if copied.is_floating_point() else copied
