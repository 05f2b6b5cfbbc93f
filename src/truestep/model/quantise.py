"""Quantise: a copy of a model whose linear layers hold integers, for inference.

Owns torchao, which is optional, and which layers are taken. What it costs is measured by `compare`.
"""

import copy
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from truestep.errors import UsageError
from truestep.model.names import What, aliases, select
from truestep.model.summary import summary
from truestep.model.tables import left_alone, shortened

Scheme = Literal["int8-weights", "int8-dynamic"]
_CONFIGS = {
    "int8-weights": "Int8WeightOnlyConfig",
    "int8-dynamic": "Int8DynamicActivationInt8WeightConfig",
}
_NOISE = {
    "torchao": "Failed to load",  # kernels for GPUs that this machine does not have
    "torch.utils._pytree": "is an Enum subclass",  # torch telling torchao's authors something
}


@dataclass(frozen=True, kw_only=True)
class Quantised:
    """A quantised copy of a model, and which layers were taken."""

    model: nn.Module
    scheme: str
    layers: tuple[str, ...]
    left: Mapping[str, str]
    """Layers with weights that stay as they are, with the reason."""
    size_bytes: tuple[int, int]
    """Of the parameters and buffers, before and after."""

    def __str__(self) -> str:
        before, after = self.size_bytes
        lines = [
            f"quantised  {len(self.layers)} to {self.scheme}: {shortened(self.layers)}",
            f"size       {before:,} to {after:,} bytes, {after / before:.0%}",
            *left_alone(self.left.items()),
        ]
        return "\n".join(lines)


def quantise(model: nn.Module, what: What = nn.Linear, *, scheme: Scheme = "int8-weights") -> Quantised:
    """Return a quantised copy of a model for inference; the model itself is not changed.

    `what` are the layers, by pattern or type. torchao quantises `nn.Linear` only; other layers, and those
    whose weight is shared (integers would untie it, and cost memory), stay unmodified and are reported.
    "int8-weights" keeps activations unmodified, "int8-dynamic" also rounds them in each call. Nothing is
    learnt from data. Measure the result with `compare`. The copy is in eval mode, and is not for training.
    """
    if scheme not in _CONFIGS:
        raise UsageError(f"scheme is {scheme!r}. Pass one of {', '.join(map(repr, _CONFIGS))}.")
    chosen = select(model, what)
    shared = {
        name for names in aliases(model, kind="parameters").values() if len(names) > 1 for name in names
    }
    left = {
        name: why
        for name, module in model.named_modules()
        if (why := _why_left(name, module, is_chosen=name in chosen, shared=shared))
    }
    taken = {name for name, module in chosen.items() if name not in left and isinstance(module, nn.Linear)}
    if not taken:
        reasons = [f"{name} ({left[name]})" for name in chosen if name in left]
        why = "; ".join(reasons[:4]) or "those that were chosen have no weights"
        raise UsageError(f"no layer can be quantised: {why}. Choose nn.Linear layers that share no weight.")
    copied = copy.deepcopy(model).eval()
    _apply(copied, taken, scheme=scheme)
    return Quantised(
        model=copied,
        scheme=scheme,
        layers=tuple(name for name in chosen if name in taken),
        left=left,
        size_bytes=(summary(model).size_bytes, summary(copied).size_bytes),
    )


def _why_left(name: str, module: nn.Module, *, is_chosen: bool, shared: set[str]) -> str | None:
    prefix = f"{name}." if name else ""
    own = {prefix + parameter for parameter, _ in module.named_parameters(recurse=False)}
    if not own:
        return None
    # The attention of torch reads the weight of this one and never calls it.
    if not isinstance(module, nn.Linear) or isinstance(module, NonDynamicallyQuantizableLinear):
        return f"{type(module).__name__} is not quantised"
    if not is_chosen:
        return "not chosen"
    return "its weight is shared" if shared & own else None


def _apply(model: nn.Module, names: set[str], *, scheme: str) -> None:
    quantization = _torchao()
    config = getattr(quantization, _CONFIGS[scheme])()
    quantization.quantize_(model, config, filter_fn=lambda _module, name: name in names)


def _torchao() -> Any:
    try:
        with _without_noise():
            import torchao.quantization  # noqa: PLC0415 - optional, and two seconds
    except ImportError as error:
        raise UsageError("quantising needs torchao. Install it: pip install 'truestep[quantise]'") from error
    return torchao.quantization


@contextmanager
def _without_noise() -> Iterator[None]:
    """Keep two known remarks off the terminal while torchao is imported; others, and errors, come through."""

    def is_news(record: logging.LogRecord) -> bool:
        return _NOISE[record.name] not in record.getMessage()

    loggers = [logging.getLogger(name) for name in _NOISE]
    for logger in loggers:
        logger.addFilter(is_news)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_news)
