"""What an operation does to shapes and memory: in terms of axes and strides.

Knows torch's signatures. Whether memory is shared is not judged from them but measured (`memory`).
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from truestep.tensor.facts import Broadcast, Operation, TensorFacts, listed
from truestep.tensor.memory import Thing, unwatched
from truestep.tensor.shapes import axes_words, broadcast, slices, why_not_view
from truestep.tensor.trace import Event, Names


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_BROADCASTING = _words(
    "add sub mul div true_divide floor_divide remainder fmod pow rsub radd rmul rdiv rtruediv rpow "
    "iadd isub imul itruediv eq ne lt le gt ge maximum minimum fmax fmin atan2 logical_and logical_or "
    "logical_xor bitwise_and bitwise_or bitwise_xor and or xor lerp where masked_fill mse_loss "
    "l1_loss smooth_l1_loss huber_loss addcmul addcdiv hypot isclose heaviside truediv floordiv mod"
)
_LOSSES = {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"}
_REDUCING = {
    **dict.fromkeys(_words("sum mean prod nansum nanmean amax amin any all argmax argmin"), (1, 2)),
    **dict.fromkeys(_words("logsumexp median nanmedian min max"), (1, 2)),
    **dict.fromkeys(_words("std var"), (1, 3)),
    **dict.fromkeys(_words("norm linalg_norm linalg_vector_norm"), (2, 3)),
}
"""Where the axis and keepdim stand among the arguments."""
_JOINING = _words("cat concat concatenate stack vstack row_stack hstack block_diag")
_COPYING = _JOINING | _words(
    "clone contiguous reshape flatten ravel to float double half int long bool type tensor as_tensor "
    "getitem repeat repeat_interleave tile flip roll index_select gather masked_select take copy "
    "resolve_conj resolve_neg cpu cuda tolist array take_along_dim rot90 narrow_copy Tensor asarray "
    "fliplr flipud"
)
"""Operations whose new memory holds values of the input, unchanged."""
_RESHAPING = _words("view reshape flatten ravel reshape_as view_as")
_ALIASES = {
    "=": "an assignment copies nothing: two names for one tensor",
    "detach": "no gradient flows back through it; writing to it changes the original, and backward raises if "
    "it needs what was changed",
    "data": "no gradient flows back through it; writing to it changes the original, and backward does NOT "
    "notice and may give wrong gradients",
}
_UNNAMED = "a tensor"
"""One that came about inside a call, and has no name in the code."""
_UNINITIALISED = _words("empty empty_like new_empty empty_strided")


def operation(event: Event, number: int, *, names: Names) -> Operation:
    """Return one event as an operation: what happened to memory, to shapes, and what to look out for."""
    event.before = _named(event.before, event.inputs, names)
    event.after = _named(event.after, event.outputs, names)
    kind, of = _verdict(event, names)
    aligned = _alignment(event)
    return Operation(
        number=number,
        name=event.name,
        code=event.code,
        verdict=kind,
        of=of,
        inputs=tuple(event.before),
        outputs=tuple(event.after),
        notes=(*_memory_notes(event, names), *_shape_notes(event)),
        warnings=_warnings(event, aligned),
        broadcast=aligned,
    )


def _named(all_facts: list[TensorFacts], things: list[Thing], names: Names) -> list[TensorFacts]:
    pairs = zip(all_facts, things, strict=True)
    return [replace(facts, name=names.of(thing) or _UNNAMED) for facts, thing in pairs]


def _verdict(event: Event, names: Names) -> tuple[str, str]:
    """Return what happened to memory, and the name of the tensor concerned."""
    if event.written:
        return "in place", event.before[event.written[0]].name
    if event.name.endswith("=") and event.before:
        return ("same" if event.name == "=" else "in place"), event.before[0].name
    if event.outputs:
        return _of_output(event, names)
    return ("new" if isinstance(event.value, Tensor) else "none"), ""


def _of_output(event: Event, names: Names) -> tuple[str, str]:
    for facts, thing in zip(event.before, event.inputs, strict=True):
        if thing is event.outputs[0]:
            return "same", facts.name
    shared = [facts.name for facts in event.before if facts.memory == event.after[0].memory]
    known = [name for name in (*shared, *map(names.of, event.viewed[-1:])) if name not in (None, _UNNAMED)]
    if known:
        return "view", str(known[0])
    if event.name not in _COPYING or not event.before:
        return "new", ""
    copied = event.before if event.name in _JOINING else event.before[:1]
    return "copy", listed(list(dict.fromkeys(facts.name for facts in copied)))


def _memory_notes(event: Event, names: Names) -> list[str]:
    if event.name in _UNINITIALISED or _is_legacy(event):
        return ["its memory is not initialized: the values are arbitrary"]
    if event.name in _ALIASES:
        return [_ALIASES[event.name]]
    others = [name for thing in event.touched if (name := names.of(thing)) and not name.startswith("step ")]
    return [f"this also changes {listed(others)}: elements are shared"] if others else []


def _is_legacy(event: Event) -> bool:
    """Whether it is `torch.Tensor(2, 3)`: numbers for sizes, not a list of values."""
    is_constructor = not event.is_torch and event.name.endswith("Tensor")
    return is_constructor and event.code.partition("(")[2][:1].isdigit()


def _shape_notes(event: Event) -> list[str]:
    if not event.is_torch or not event.before or not event.after:
        return []
    note = _reduced(event) or (_reshaped(event) if event.name in _RESHAPING else _copied(event))
    return [note] if note else []


def _reshaped(event: Event) -> str:
    before, after = event.before[0], event.after[0]
    if before.memory == after.memory:
        is_luck = not event.name.startswith("view") and before.shape != after.shape
        return (
            "a view in this case, but it would be a copy if the strides did not allow one" if is_luck else ""
        )
    why = why_not_view(before, after.shape)
    return f"no view can do this: {why}" if why and before.num_bytes else ""


def _copied(event: Event) -> str:
    before, after = event.before[0], event.after[0]
    is_shared = before.memory == after.memory
    if event.name == "contiguous":
        if is_shared:
            return "was contiguous already: nothing is copied, it is the same tensor"
        return f"was not contiguous: copied into one row, strides {before.stride} become {after.stride}"
    if after.expanded_axes and event.name in {"expand", "expand_as", "broadcast_to"}:
        axes = axes_words(after.expanded_axes)
        return f"stride 0 along {axes}: the repeated elements are one cell each; clone() before writing"
    if event.name == "getitem" and not is_shared:
        return "an index made of a list, a tensor or a mask picks elements by copying them"
    return ""


def _argument(event: Event, position: int, *names: str, default: Any = None) -> Any:
    for name in names:
        if name in event.kwargs:
            return event.kwargs[name]
    return event.args[position] if len(event.args) > position else default


def _reduced(event: Event) -> str:
    """Return which axes a reduction removes; empty if it is none."""
    facts = event.before[0]
    ndim = len(facts.shape)
    if event.name not in _REDUCING or not ndim or len(event.after) not in (1, 2):
        return ""
    where_dim, where_keep = _REDUCING[event.name]
    dim = _argument(event, where_dim, "dim", "axis")
    if isinstance(dim, (Tensor, np.ndarray)):
        return ""  # torch.max(x, y) compares element by element
    numbers = dim if isinstance(dim, (tuple, list)) else [dim]
    is_axes = all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
    axes = sorted(number % ndim for number in numbers) if numbers and is_axes else list(range(ndim))
    if len(axes) == ndim:
        return f"all {math.prod(facts.shape):,} elements become one"
    is_kept = bool(_argument(event, where_keep, "keepdim", "keepdims", default=False))
    ending = "" if len(axes) > 1 else "s"
    goes = f"stay{ending} with size 1" if is_kept else ("go away" if not ending else "goes away")
    parts = slices(facts.name, ndim=ndim, axes=axes)
    return f"{axes_words(axes)} {goes}: each result is the {event.name} of {parts}"


def _alignment(event: Event) -> Broadcast | None:
    """Return how the operands of a call are aligned; None if nothing is repeated."""
    if event.name.rstrip("_") not in _BROADCASTING:
        return None
    return broadcast([facts for facts in event.before if facts.shape])


def _warnings(event: Event, aligned: Broadcast | None) -> tuple[str, ...]:
    """Return what is probably not meant."""
    if aligned is None or not aligned.is_silent:
        return ()
    pairs = " and ".join(map(str, aligned.shapes))
    loss = " The loss compares each with every other." if event.name in _LOSSES else ""
    words = f"{pairs} give {aligned.shape}: every element meets every other.{loss}"
    return (f"{words} If pairs were meant, make the shapes equal: squeeze(-1) or unsqueeze(-1).",)


def why_no_view(event: Event) -> str:
    """Return which axes a failed `view` joins that no stride walks through; empty if it is no such."""
    if event.name != "view" or not event.before:
        return ""
    try:
        with unwatched():
            new = event.args[0].reshape(*event.args[1:], **event.kwargs).shape
    except (TypeError, RuntimeError):  # another mistake: torch has said which
        return ""
    why = why_not_view(event.before[0], new)
    return f"{why}. reshape() would copy instead" if why else ""
