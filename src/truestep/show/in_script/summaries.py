"""One value in a few numbers and words: shape, range, mean, and what is odd about it.

Owns reading values. Nothing is kept of a tensor, nothing is drawn, and no code of the user's is called.
"""

import math
from collections.abc import Callable
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from truestep.watch.script.nested_tensors import is_overridden

_SHORT = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}
_MAX_DISTINCT, _MAX_COMPARED, _MAX_TEXT, _MAX_ITEMS = 1 << 20, 1 << 20, 40, 3
_MAX_READ = 1 << 22
"""Elements: of a larger tensor every n-th is read."""
_SOME_ZEROS = 0.05

NOT_FINITE = "not finite"
EQUAL_ROWS = "all rows equal"
ALL_ZEROS = "all zeros"
TIMES = "\u00d7"


class Summary(NamedTuple):
    """What is shown of a value."""

    text: str
    """Kind and shape."""
    numbers: str = ""
    """Its range and mean, or the value itself."""
    facts: tuple[str, ...] = ()
    scalar: float | None = None
    """The value, if it is one number: for a curve."""


def summarize(value: Any) -> Summary | None:
    """Return what is shown of a value; None if there is nothing to say about its kind."""
    for kinds, summarize_kind in _KINDS:
        if isinstance(value, kinds):
            return summarize_kind(value)
    return _of_container(value) if type(value) in (list, tuple, dict, set) else None


def mark(value: Any) -> tuple[Any, ...] | None:
    """Return what two values of the same bits have in common; None if that cannot be read cheaply."""
    if not isinstance(value, Tensor) or not _is_plain(value) or not 0 < value.numel() <= _MAX_READ:
        return None
    flat = value.detach().reshape(-1)
    sample = flat[:: max(1, flat.numel() // 64)][:64]
    total = flat.sum(dtype=torch.float64 if value.is_floating_point() else None)
    return (tuple(value.shape), str(value.dtype), _number(total), tuple(map(repr, sample.tolist())))


def _is_plain(value: Tensor) -> bool:
    return (
        value.layout is torch.strided
        and not value.is_meta
        and not value.is_nested
        and not value.is_quantized
        and not is_overridden(value)
    )


def _of_tensor(value: Tensor) -> Summary:
    kind = _kind(str(value.dtype).removeprefix("torch."))
    where = "" if value.device.type == "cpu" else f" on {value.device}"
    if value.is_nested or is_overridden(value):
        return Summary(f"{type(value).__name__}{where}")
    shape = TIMES.join(map(str, value.shape)) or "scalar"
    has_gradient = value.requires_grad and not isinstance(value, nn.Parameter)
    text = f"{kind} {shape}{where}{' grad' * has_gradient}"
    if not _is_plain(value):
        return Summary(f"{text} {str(value.layout).removeprefix('torch.')}")
    if not value.numel():
        return Summary(f"{text}, empty")
    numbers, facts, scalar = _numbers_of(_sampled(value.detach()))
    return Summary(text, numbers, tuple(facts), scalar)


def _sampled(value: Tensor) -> Tensor:
    """Return a view of every n-th row of a large tensor; a smaller one as it is."""
    step = -(-value.numel() // _MAX_READ)
    return value[::step] if step > 1 and value.dim() and len(value) > step else value


def _numbers_of(value: Tensor) -> tuple[str, list[str], float | None]:
    facts: list[str] = []
    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
    if value.numel() == 1 and value.dtype is not torch.bool:
        number = float(value.item())
        return _short(number), [] if math.isfinite(number) else [NOT_FINITE], number
    if _has_equal_rows(value):
        facts.append(EQUAL_ROWS)
    if value.dtype is torch.bool:
        return f"{_percent(value.float().mean())} true", facts, None
    if not value.is_floating_point():
        low, high = value.aminmax()
        distinct = f", {len(value.unique())} distinct" if value.numel() <= _MAX_DISTINCT else ""
        return f"{low.item()} … {high.item()}{distinct}", facts, None
    wide = value.float() if value.element_size() < 4 else value
    finite = torch.isfinite(wide)
    if not bool(finite.all()):
        facts.insert(0, NOT_FINITE)
        wide = wide[finite]
        if not wide.numel():
            return "", facts, None
    low, high = wide.aminmax()
    if low == high == 0:
        return "0", [*facts, ALL_ZEROS], None
    zeros = float((wide == 0).float().mean())
    share = f", {100 * zeros:.0f} % zeros" if zeros > _SOME_ZEROS else ""
    return (
        f"{_rough(low.item())} … {_rough(high.item())}, mean {_rough(wide.mean().item())}{share}",
        facts,
        None,
    )


def _has_equal_rows(value: Tensor) -> bool:
    return (
        value.dim() > 1
        and len(value) > 1
        and value[0].numel() > 0
        and value.numel() <= _MAX_COMPARED
        and bool((value == value[:1]).all())
    )


def _of_array(value: "np.ndarray[Any, Any]") -> Summary:
    shape = TIMES.join(map(str, value.shape)) or "scalar"
    text = f"numpy {_kind(str(value.dtype))} {shape}"
    if value.dtype.kind not in "fiu" or not value.size:
        return Summary(text)
    with np.errstate(all="ignore"):
        facts = () if np.isfinite(value).all() else (NOT_FINITE,)
        return Summary(text, f"{_rough(float(value.min()))} … {_rough(float(value.max()))}", facts)


def _of_number(value: Any) -> Summary:
    try:
        number = float(value)
    except OverflowError:
        return Summary(repr(value))
    shown = repr(value) if isinstance(value, int) else _short(number)
    facts = () if math.isfinite(number) else (NOT_FINITE,)
    return Summary("", shown, facts, number)


def _of_text(value: str) -> Summary:
    return Summary(repr(value if len(value) <= _MAX_TEXT else value[: _MAX_TEXT - 1] + "…"))


def _of_module(value: nn.Module) -> Summary:
    num = sum(item.numel() for item in value.parameters())
    return Summary(type(value).__name__, f"{num:,} parameters, {'train' if value.training else 'eval'} mode")


def _of_container(value: Any) -> Summary:
    named = value.items() if isinstance(value, dict) else enumerate(value)
    tensors = [(name, item) for name, item in islice(named, _MAX_ITEMS) if isinstance(item, Tensor)]
    words = f"{type(value).__name__} of {len(value)}"
    if not tensors or len(value) > _MAX_ITEMS:
        return Summary(words)
    parts = [f"{name}: {_of_tensor(item).text}" for name, item in tensors]
    return Summary(words, "; ".join(parts))


def _kind(name: str) -> str:
    stem = name.rstrip("0123456789")
    return f"{_SHORT[stem]}{name[len(stem) :]}" if stem in _SHORT and stem != name else name


def _number(value: Tensor) -> str:
    return repr(value.item())


def _percent(share: Tensor) -> str:
    return f"{100 * float(share):.3g} %"


def _short(number: float) -> str:
    return f"{number:.4g}"


def _rough(number: float) -> str:
    return f"{number:.3g}"


_KINDS: tuple[tuple[Any, Callable[[Any], Summary]], ...] = (
    (Tensor, _of_tensor),
    (np.ndarray, _of_array),
    (bool | None, lambda value: Summary(repr(value))),
    (int | float | np.number, _of_number),
    (str, _of_text),
    (nn.Module, _of_module),
)
