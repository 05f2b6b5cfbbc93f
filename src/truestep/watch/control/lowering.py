"""A short format against float32 on a script's own model and batch, with float64 as judge.

Owns which module loses most when the model runs under autocast, and the operation in it. Keeping the call and
running forward and backward are left to `compiling` and `passes`.
"""

import copy
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from truestep.watch.control.passes import (
    Call,
    Values,
    as_double,
    is_random_module,
    own_place,
    values_of_call,
)

_MAX_MODULES, _MAX_OPERATIONS, _MAX_ELEMENTS = 64, 400, 8192
_FORMATS = ("aten._to_copy.default", "aten.detach.default", "aten.clone.default")
_MUCH = 0.8
"""A module is named if it alone brings a value so much closer."""
_UNKNOWN = 0.01
_HOPELESS = 1.0
"""Of a value's norm: farther from the judge than zeros are."""


def compare(model: nn.Module, call: Call, *, is_own: Callable[[str], bool]) -> dict[str, Any]:
    """Return how far float32 and autocast are from float64, and which module and operation lose most."""
    device = next((item.device.type for item in model.parameters()), "cpu")
    with torch.autocast(device, enabled=False):  # the script may call its model under autocast
        return _compare(model, call, is_own)


def _compare(model: nn.Module, call: Call, is_own: Callable[[str], bool]) -> dict[str, Any]:
    if any(item.is_floating_point() and item.dtype is not torch.float32 for item in model.parameters()):
        return {"reason": "the model's parameters are not in float32"}
    model = _without_dropout(model)
    if is_random_module(model, call):
        return {"reason": "the model draws random numbers besides dropout"}
    judge = values_of_call(copy.deepcopy(model).double(), as_double(call))
    plain = values_of_call(copy.deepcopy(model), call)
    short = _run_short(model, call)
    # What float32 does not get right either says nothing: a gradient that is zero but for rounding.
    told = [name for name in judge if _apart(plain, judge, name) < _UNKNOWN]
    if not told:
        return {"reason": "float32 is too far from float64 to judge by"}
    worst = max(told, key=lambda name: _order(_apart(short, judge, name)))
    found: dict[str, Any] = {
        "value": worst,
        "apart": _finite(_apart(short, judge, worst)),
        "plain_apart": _finite(_apart(plain, judge, worst)),
        "module": None,
    }
    own = _apart(short, judge, worst)
    found["is_beyond"] = not own <= _HOPELESS
    names = [name for name, item in model.named_modules() if name and not [*item.children()]][:_MAX_MODULES]
    without = {name: _apart(_run_short(model, call, spared=name), judge, worst) for name in names}
    if without:
        best = min(without, key=lambda name: _order(without[name]))
        if _order(without[best]) < _MUCH * _order(own):
            kind = type(model.get_submodule(best)).__name__
            found |= {"module": best, "kind": kind, "spared_apart": _finite(without[best])}
    return found | _operation(model, call, is_own)


def _without_dropout(model: nn.Module) -> nn.Module:
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):  # of attention
            setattr(module, "dropout", 0.0)  # noqa: B010 - torch types attributes of modules as tensors
    return model


def _run_short(model: nn.Module, call: Call, *, spared: str | None = None) -> Values:
    """Run under autocast; the module that is spared computes in float32, and gives what it gave before.

    If it gave float32, what comes after it would compute in float32 too.
    """
    twin = copy.deepcopy(model)
    device = next((item.device.type for item in twin.parameters()), "cpu")
    if spared is not None:
        module = twin.get_submodule(spared)
        forward = module.forward

        def in_float32(*args: Any, **kwargs: Any) -> Any:
            with torch.no_grad():
                kinds = {
                    getattr(item, "dtype", None) for item in pytree.tree_leaves(forward(*args, **kwargs))
                }
            with torch.autocast(device, enabled=False):
                args, kwargs = pytree.tree_map_only(Tensor, _as_float, (args, kwargs))
                outputs = forward(*args, **kwargs)
            is_short = torch.bfloat16 in kinds
            return pytree.tree_map_only(Tensor, _as_short, outputs) if is_short else outputs

        module.forward = in_float32
    with torch.autocast(device, dtype=torch.bfloat16):
        return values_of_call(twin, call)


def _as_short(item: Tensor) -> Tensor:
    return item.bfloat16() if item.dtype is torch.float32 else item


def _as_float(item: Tensor) -> Tensor:
    return item.float() if item.dtype is torch.bfloat16 else item


def _operation(model: nn.Module, call: Call, is_own: Callable[[str], bool]) -> dict[str, Any]:
    """Return the operation whose result is farther from float64 than its inputs are, by most."""
    device = next((item.device.type for item in model.parameters()), "cpu")
    exact, short = _Results(is_own), _Results(is_own)
    with exact:
        values_of_call(exact.follow(copy.deepcopy(model).double()), as_double(call))
    with torch.autocast(device, dtype=torch.bfloat16), short:
        values_of_call(short.follow(copy.deepcopy(model)), call)
    found: dict[str, Any] = {"operation": None, "file": None, "line": None, "lost": None}
    most = 0.0
    for ours, theirs in zip(short.calls, exact.calls, strict=False):
        if ours.name != theirs.name:
            break  # the two compute in other ways from here on
        given, made = _farthest(ours.ins, theirs.ins), _farthest(ours.outs, theirs.outs)
        if made - given > most:
            most = made - given
            found = {"operation": ours.name, "file": ours.place[0], "line": ours.place[1]}
            found |= {"inputs_apart": _finite(given), "lost": _finite(made)}
    return found


class _Called(NamedTuple):
    name: str
    ins: list[Tensor]
    outs: list[Tensor]
    place: tuple[str | None, int | None]


class _Results(TorchDispatchMode):
    """Keeps some elements of what operations are given and give; changes of format are left out."""

    def __init__(self, is_own: Callable[[str], bool]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._is_own = is_own
        self._is_inside = False
        self.calls: list[_Called] = []

    def follow(self, model: nn.Module) -> nn.Module:
        """Keep what happens in this model's forward pass."""
        model.register_forward_pre_hook(lambda *_: setattr(self, "_is_inside", True))
        model.register_forward_hook(lambda *_: setattr(self, "_is_inside", False))
        return model

    def __torch_dispatch__(  # limits: torch calls it like this
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        ins = _samples((args, kwargs))
        result = func(*args, **(kwargs or {}))
        is_told = self._is_inside and str(func) not in _FORMATS and "empty" not in str(func)
        if is_told and len(self.calls) < _MAX_OPERATIONS:
            self.calls.append(_Called(str(func), ins, _samples(result), own_place(self._is_own)))
        return result


def _samples(value: Any) -> list[Tensor]:
    """Return some elements of each floating-point tensor, in float64."""
    floats = [
        item for item in pytree.tree_leaves(value) if isinstance(item, Tensor) and item.is_floating_point()
    ]
    return [item.detach().reshape(-1)[:: max(1, item.numel() // _MAX_ELEMENTS)].double() for item in floats]


def _farthest(ours: list[Tensor], theirs: list[Tensor]) -> float:
    pairs = [(one, other) for one, other in zip(ours, theirs, strict=False) if one.shape == other.shape]
    distances = [float((one - other).norm()) / (float(other.norm()) or 1.0) for one, other in pairs]
    return max((_HOPELESS if math.isnan(item) else min(item, _HOPELESS) for item in distances), default=0.0)


def _apart(values: Values, judge: Values, name: str) -> float:
    size = float(judge[name].norm()) or 1.0
    return float((values[name] - judge[name]).norm()) / size if name in values else math.inf


def _order(apart: float) -> float:
    return math.inf if math.isnan(apart) else apart


def _finite(apart: float) -> float | None:
    return apart if math.isfinite(apart) else None
