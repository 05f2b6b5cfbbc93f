"""One forward and backward pass of a module: its values, and whether two passes differ by more than rounding.

Owns how far eager code goes by rounding alone: its distance from float64, and from passes of its own whose
inputs and weights are off by one rounding. Which passes are compared is left to `compiling`.
"""

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

_TIMES, _ROUNDINGS = 10.0, 200.0
"""Beyond rounding: more than so many times eager code's own distance, and so many roundings."""
_SHORT_ROUNDINGS, _FLOAT32 = 4.0, 1.2e-7
"""In bfloat16 and float16, 200 roundings are as large as the value."""
_SMALL = 1e-3
"""Of the largest gradient. A smaller one may be zero but for rounding."""
_UNKNOWN = 0.1
"""If eager code is farther from the judge than this everywhere, nothing can be judged."""
_FEW, _NUM_NUDGED = 2, 10

Call = tuple[tuple[Any, ...], dict[str, Any]]
Values = dict[str, Tensor]


def detached(value: Any) -> Any:
    """Return a value with copies of its tensors, which need gradients as before."""

    def change(item: Tensor) -> Tensor:
        return item.detach().clone().requires_grad_(item.requires_grad)

    return pytree.tree_map_only(Tensor, change, value)


def as_double(value: Any) -> Any:
    """Return a value with its floating-point tensors in float64."""

    def change(item: Tensor) -> Tensor:
        return _to_double(item.detach()).requires_grad_(item.requires_grad)

    return pytree.tree_map_only(Tensor, change, value)


def doubled(module: nn.Module) -> nn.Module:
    """Return a copy of a module in float64."""
    twin = copy.deepcopy(module).double()
    for item in (*twin.parameters(), *twin.buffers()):
        item.data = _to_double(item.data)  # double() leaves complex tensors
    return twin


def _to_double(item: Tensor) -> Tensor:
    if item.is_complex():
        return item.to(torch.complex128)
    return item.double() if item.is_floating_point() else item


def _tensors_of(value: Any) -> list[Tensor]:
    """Return all tensors of a module, or of a structure of values."""
    if isinstance(value, nn.Module):
        return [*value.parameters(), *value.buffers()]
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def _leaves(value: Any) -> list[Tensor]:
    found = _tensors_of(value)
    if not found and hasattr(value, "__dict__"):
        found = _tensors_of(dict(vars(value)))
    return [leaf for leaf in found if _has_fractions(leaf)]


def _has_fractions(item: Tensor) -> bool:
    return item.is_floating_point() or item.is_complex()


def _as_real(item: Tensor) -> Tensor:
    item = item.to_dense() if item.is_sparse else item
    return torch.view_as_real(item.resolve_conj()) if item.is_complex() else item


def _named_values(found: dict[str, Tensor]) -> Values:
    """Return copies as real numbers in float64."""
    return {
        name: _as_real(item.detach()).double().clone() for name, item in found.items() if _has_fractions(item)
    }


def values_of_call(module: nn.Module, call: Call, *, compiled: Callable[..., Any] | None = None) -> Values:
    """Run forward and backward, and return outputs, buffers, and gradients of parameters and inputs."""
    args, kwargs = detached(call)
    inputs = [item for item in _tensors_of((args, kwargs)) if item.requires_grad]
    torch.manual_seed(0)
    compute = module if compiled is None else compiled
    # A module may change its input in place, which a leaf that needs a gradient does not allow.
    given = pytree.tree_map_only(
        Tensor, lambda item: item.clone() if item.requires_grad else item, (args, kwargs)
    )
    outputs = [_as_real(item) for item in _leaves(compute(*given[0], **given[1]))]
    found = {f"output {place}": item for place, item in enumerate(outputs)}
    total = sum((item.double() * _weights(item)).sum() for item in outputs)
    if isinstance(total, Tensor) and total.requires_grad:
        total.backward()
        named: dict[str, Tensor] = dict(module.named_parameters())
        named |= {f"input {place}": item for place, item in enumerate(inputs)}
        found |= {f"gradient of {name}": item.grad for name, item in named.items() if item.grad is not None}
    found |= {f"buffer {name}": item for name, item in module.named_buffers()}
    return _named_values(found)


def _weights(item: Tensor) -> Tensor:
    """Fixed numbers, so that every output's gradient counts."""
    return torch.cos(torch.arange(item.numel(), dtype=torch.float64, device=item.device)).reshape(item.shape)


def is_random_module(module: nn.Module, call: Call) -> bool:
    """Whether a module gives other outputs with another seed."""
    results = []
    for seed in (0, 1):
        args, kwargs = detached(call)
        twin = copy.deepcopy(module)
        torch.manual_seed(seed)
        results.append(_leaves(twin(*args, **kwargs)))
    return any(not torch.equal(one, other) for one, other in zip(*results, strict=True))


def _nudged(items: Iterable[Tensor], seed: int) -> list[Tensor]:
    """Return copies that are off by one rounding, up or down."""
    generator = torch.Generator().manual_seed(seed)
    return [
        _nudge(item.detach(), generator) if _has_fractions(item) else item.detach().clone() for item in items
    ]


def _nudge(item: Tensor, generator: torch.Generator) -> Tensor:
    signs = torch.randint(0, 2, item.shape, generator=generator) * 2 - 1
    return item * (1 + torch.finfo(item.dtype).eps * signs.to(device=item.device, dtype=item.dtype))


def nudged_passes(module: nn.Module, call: Call) -> Iterator[Values]:
    """Yield the values of eager passes with weights and inputs that are off by one rounding."""
    for seed in range(_NUM_NUDGED):
        twin = copy.deepcopy(module)
        owned = _tensors_of(twin)
        for item, changed in zip(owned, _nudged(owned, seed), strict=True):
            item.data = changed
        flat, spec = pytree.tree_flatten(call)
        places = [place for place, leaf in enumerate(flat) if isinstance(leaf, Tensor)]
        changes = _nudged([flat[place] for place in places], seed + _NUM_NUDGED)
        for place, changed in zip(places, changes, strict=True):
            flat[place] = changed.requires_grad_(flat[place].requires_grad)
        yield values_of_call(twin, pytree.tree_unflatten(flat, spec))


def compare(
    judge: Values, compiled: Values, *, eager: Values, others: Iterator[Values], eps: float
) -> dict[str, Any]:
    """Return which value is farthest from the judge, and whether beyond what eager code's own passes are."""
    near = [eager, *(item for item, _ in zip(others, range(_FEW), strict=False))]
    worst = _worst(judge, near, compiled, eps=eps)
    if worst["is_beyond"] and worst["apart"] is not None:
        worst = _worst(judge, [*near, *others], compiled, eps=eps)
    return worst


def eps_of(*values: Any) -> float:
    """Return the largest rounding of the formats that are used."""
    kinds = {item.dtype for value in values for item in _tensors_of(value) if _has_fractions(item)}
    return max((torch.finfo(kind).eps for kind in kinds), default=_FLOAT32)


def _worst(judge: Values, near: list[Values], compiled: Values, *, eps: float) -> dict[str, Any]:
    worst: dict[str, Any] = {"is_beyond": False, "value": "", "apart": 0.0, "eager_apart": 0.0}
    most, is_judged = -1.0, False
    largest = max((_size(item) for name, item in judge.items() if name.startswith("gradient")), default=0.0)
    least = min(_ROUNDINGS * eps, max(_ROUNDINGS * _FLOAT32, _SHORT_ROUNDINGS * eps))
    for name, exact in judge.items():
        if name not in compiled or compiled[name].shape != exact.shape:
            return {**worst, "is_beyond": True, "value": name, "apart": None, "is_judged": True}
        size = max(_size(exact), _SMALL * largest if name.startswith("gradient") else 0.0) or 1.0
        apart = _distance(compiled[name], exact) / size
        fitting = [item[name] for item in near if name in item and item[name].shape == exact.shape]
        own = max((_distance(item, exact) / size for item in fitting), default=math.inf)
        is_judged |= own <= _UNKNOWN and bool(exact.isfinite().any())
        excess = 0.0 if math.isinf(own) else apart / max(_TIMES * own, least)
        if excess > most:
            most = excess
            worst = {
                "is_beyond": excess > 1.0,
                "value": name,
                "apart": _finite(apart),
                "eager_apart": _finite(own),
            }
    return {**worst, "is_judged": is_judged}


def _size(item: Tensor) -> float:
    return float(item.nan_to_num(0.0, 0.0, 0.0).norm())


def _distance(item: Tensor, exact: Tensor) -> float:
    """Return how far apart two tensors are; infinities and NaN at the same places are equal."""
    is_equal = (item == exact) | (item.isnan() & exact.isnan())
    apart = float(torch.where(is_equal, 0.0, item - exact).norm())
    return math.inf if math.isnan(apart) else apart


def _finite(apart: float) -> float | None:
    return apart if math.isfinite(apart) else None
