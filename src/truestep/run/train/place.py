"""Placing a model: device, precision, compilation, recomputed activations.

Changes how a module's forward runs, never its names: state dicts stay those of the plain model.
"""

import copy
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from truestep.errors import UsageError

Precision = Literal["fp32", "bf16", "fp16"]
Parallel = Literal["ddp", "flat", "fsdp"]
_AUTOCAST: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Autocast:
    """A forward that runs under autocast and returns floating outputs in float32.

    A class, not a closure: a deep copy of the module (an EMA) must call its own forward.
    """

    def __init__(self, forward: Callable[..., Any], *, device_type: str, dtype: torch.dtype) -> None:
        self.forward, self.device_type, self.dtype = forward, device_type, dtype

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute as the module does, in the precision of `dtype` where that is safe."""
        with torch.autocast(self.device_type, dtype=self.dtype):
            return _to_float32(self.forward(*args, **kwargs))


class _Compiled:
    """A forward that is compiled when it is first called."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.forward = forward
        self._compiled: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._compiled is None:
            self._compiled = torch.compile(self.forward)
        return self._compiled(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Compiled":
        return _Compiled(copy.deepcopy(self.forward, memo))


class Recompute:
    """A forward whose activations are computed again in backward instead of kept."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.forward = forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute as the module does, and keep its inputs only."""
        return checkpoint(self.forward, *args, use_reentrant=False, **kwargs)


def _matches(name: str, pattern: str) -> bool:
    """Match part by part: `blocks.*` means the blocks, not everything inside them."""
    names, patterns = name.split("."), pattern.split(".")
    return len(names) == len(patterns) and all(map(fnmatchcase, names, patterns))


def _to_float32(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in _AUTOCAST.values() else value
    if isinstance(value, dict):  # also Hugging Face's outputs, which are dictionaries with attributes
        for key in value:
            value[key] = _to_float32(value[key])
        return value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_to_float32, value))
    if isinstance(value, list | tuple):
        return type(value)(map(_to_float32, value))
    return value


def _require_values(model: nn.Module) -> None:
    tensors = (*model.named_parameters(), *model.named_buffers())
    empty = next((name for name, tensor in tensors if tensor.is_meta), None)
    if empty is not None:
        raise UsageError(
            f"{empty} is on the meta device and has no values. Give the model its values before run.place: "
            "model.to_empty(device=run.device), then initialize it or load a checkpoint."
        )


def place(
    model: nn.Module, *, device: torch.device, precision: Precision, compiled: bool, recompute: Sequence[str]
) -> None:
    """Move a model to a device and change how its forward runs, in place."""
    if precision not in ("fp32", *_AUTOCAST):
        raise UsageError(f"precision must be 'fp32', 'bf16' or 'fp16', got {precision!r}.")
    _require_values(model)
    model.to(device)
    for pattern in recompute:
        matching = [module for name, module in model.named_modules() if _matches(name, pattern)]
        if not matching:
            names = ", ".join(name for name, _ in model.named_children())
            raise UsageError(f"recompute={pattern!r} matches no module. The model's children are: {names}.")
        for module in matching:
            module.forward = Recompute(module.forward)
    if precision in _AUTOCAST:
        model.forward = Autocast(model.forward, device_type=device.type, dtype=_AUTOCAST[precision])
    if compiled:
        # bits: also tells the compiler not to choose kernels by timing them.
        torch.use_deterministic_algorithms(True)
        model.forward = _Compiled(model.forward)


def move(batch: Any, device: torch.device) -> Any:
    """Move a batch (tensors in any nest of tuples, lists and dictionaries) to a device."""
    if isinstance(batch, torch.Tensor) or hasattr(batch, "to"):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: move(item, device) for key, item in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move(item, device) for item in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(move(item, device) for item in batch)
    return batch
