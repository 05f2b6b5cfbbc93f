"""What an operation does to shapes, in a sentence or two: one small function for each kind of operation.

Knows torch's signatures. Whether memory is shared is not judged here but measured (`memory`).
"""

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from torch import Tensor

from truestep.tensor.facts import Broadcast, Reduction
from truestep.tensor.shapes import axes_words, broadcast, counted, slices, why_not_view, written
from truestep.tensor.trace import Event


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


BROADCASTING = _words(
    "add sub mul div true_divide floor_divide remainder fmod pow rsub radd rmul rdiv rtruediv rpow "
    "iadd isub imul itruediv eq ne lt le gt ge maximum minimum fmax fmin atan2 logical_and logical_or "
    "logical_xor bitwise_and bitwise_or bitwise_xor and or xor lerp where masked_fill mse_loss "
    "l1_loss smooth_l1_loss huber_loss addcmul addcdiv hypot isclose heaviside truediv floordiv mod"
)
_LOSSES = {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"}

_FULL = _words(
    "sum mean prod nansum nanmean amax amin any all argmax argmin logsumexp median nanmedian mode min max"
)
REDUCING = {
    **dict.fromkeys(_FULL, (1, 2)),
    **dict.fromkeys(("std", "var"), (1, 3)),
    **dict.fromkeys(("norm", "linalg_norm", "linalg_vector_norm", "quantile", "nanquantile"), (2, 3)),
    "count_nonzero": (1, 9),
    "cosine_similarity": (2, 9),
}
"""Where the axis and keepdim stand among the arguments."""


def argument(event: Event, position: int, *names: str, default: Any = None) -> Any:
    """Return an argument of a call by position, or by one of its names."""
    for name in names:
        if name in event.kwargs:
            return event.kwargs[name]
    return event.args[position] if len(event.args) > position else default


def _axes(value: Any, ndim: int) -> tuple[int, ...] | None:
    if isinstance(value, bool) or not isinstance(value, (int, tuple, list)):
        return None
    numbers = [value] if isinstance(value, int) else list(value)
    if not numbers or not all(isinstance(number, int) for number in numbers):
        return None
    return tuple(sorted(number % max(ndim, 1) for number in numbers))


def reduction(event: Event) -> Reduction | None:
    """Return which axes a call walks over; None if it is no reduction."""
    if event.name not in REDUCING or not event.is_torch or not event.before or len(event.after) not in (1, 2):
        return None
    where_dim, where_keep = REDUCING[event.name]
    shape = event.before[0].shape
    dim = argument(event, where_dim, "dim", "axis")
    if isinstance(dim, (Tensor, np.ndarray)):
        return None  # torch.max(x, y) compares element by element
    if dim is None:
        dim = {"cosine_similarity": 1, "mode": -1}.get(event.name)
    axes = _axes(dim, len(shape))
    keepdim = bool(argument(event, where_keep, "keepdim", "keepdims", default=False))
    if axes is None or not shape:
        axes = tuple(range(len(shape)))
    return Reduction(axes=axes, keepdim=keepdim, num_elements=math.prod(shape[axis] for axis in axes))


def alignment(event: Event) -> Broadcast | None:
    """Return how the operands of a call are aligned; None if nothing is repeated."""
    if event.name.rstrip("_") not in BROADCASTING:
        return None
    return broadcast([facts for facts in event.before if facts.shape])


def notes(event: Event) -> list[str]:
    """Return what there is to say about shapes; the memory has been told elsewhere."""
    if not event.is_torch:
        return []
    notes: list[str] = []
    walked = reduction(event)
    if walked is not None:
        notes += _reduced(event, walked)
    speak = _SPEAKERS.get(event.name.rstrip("_") if event.name != "H" else "H")
    # A form of the call that is not known here gets no word: better than a wrong one.
    with suppress(TypeError, IndexError, KeyError, ZeroDivisionError):
        notes += [note for note in speak(event) if note] if speak is not None else []
    return notes


def warnings(event: Event, aligned: Broadcast | None) -> list[str]:
    """Return what is probably not meant."""
    notes = [f"torch warns: {' '.join(text.split()[:40])}" for text in event.warned if aligned is None]
    if aligned is not None and aligned.is_silent:
        pairs = " and ".join(written(shape) for shape in aligned.shapes)
        loss = " The loss compares each with every other." if event.name in _LOSSES else ""
        notes.append(
            f"{pairs} give {written(aligned.shape)}: every element meets every other.{loss} "
            "If pairs were meant, make the shapes equal: squeeze(-1) or unsqueeze(-1)."
        )
    return notes


def _reduced(event: Event, walked: Reduction) -> list[str]:
    facts = event.before[0]
    what = {"min": "smallest", "max": "largest", "amin": "smallest", "amax": "largest"}.get(
        event.name, event.name
    )
    if not facts.shape:
        return []
    if len(walked.axes) == len(facts.shape):
        stays = f", kept as {written(event.after[0].shape)}" if walked.keepdim else ""
        return [f"all {counted(walked.num_elements, 'element')} become one{stays}", *_nan(event)]
    parts = slices(facts.name, ndim=len(facts.shape), axes=walked.axes)
    plural = len(walked.axes) > 1
    goes = (
        f"stay{'' if plural else 's'} with size 1" if walked.keepdim else f"go{'' if plural else 'es'} away"
    )
    num = counted(walked.num_elements, "element")
    notes = [f"{axes_words(walked.axes)} {goes}: each result is the {what} of {num} {parts}"]
    if len(event.after) == 2:
        notes.append(f"two tensors: the values, and the indices along axis {walked.axes[0]}")
    return notes + _nan(event)


def _nan(event: Event) -> list[str]:
    if event.name not in {"nanmean", "nansum", "nanmedian", "sum", "mean"} or event.before[0].values is None:
        return []
    values = event.before[0].values
    num = sum(isinstance(value, float) and math.isnan(value) for value in values)
    if not num:
        return []
    if event.name.startswith("nan"):
        return [f"{num} of {counted(len(values), 'element')} {'is' if num == 1 else 'are'} NaN and left out"]
    return [f"{num} NaN among the elements: it spreads into the result (nan{event.name} leaves it out)"]


def _one_axis(event: Event, position: int, default: int | None = None) -> int | None:
    ndim = len(event.before[0].shape)
    axes = _axes(argument(event, position, "dim", "axis", default=default), ndim)
    return axes[0] if axes and ndim else None


def _normalised(event: Event) -> list[str]:
    is_norm = event.name == "normalize"
    axis = _one_axis(event, 2, 1) if is_norm else _one_axis(event, 1)
    if axis is None:
        return []
    facts = event.before[0]
    parts = slices(facts.name, ndim=len(facts.shape), axes=[axis])
    power = argument(event, 1, "p", default=2.0)
    total = {"softmax": "sum to one", "log_softmax": "have exponentials that sum to one"}
    result = f"have {power:g}-norm one (zeros stay zeros)" if is_norm else total[event.name]
    return [f"over axis {axis}: the {counted(facts.shape[axis], 'element')} {parts} of the result {result}"]


def _scanned(event: Event) -> list[str]:
    axis = _one_axis(event, 1)
    return [] if axis is None else [f"along axis {axis}, {counted(event.before[0].shape[axis], 'step')} each"]


def _moved(event: Event) -> list[str]:
    facts, ndim = event.before[0], len(event.before[0].shape)
    if event.name in {"T", "mT", "H", "mH", "t", "adjoint"}:
        order = list(range(ndim))
        order = order[::-1] if event.name in {"T", "t", "H"} else order[:-2] + order[-2:][::-1]
    elif event.name == "permute":
        given = event.args[1:] if len(event.args) > 2 else (argument(event, 1, "dims"),)
        numbers = given[0] if len(given) == 1 and isinstance(given[0], (tuple, list)) else given
        order = [int(number) % max(ndim, 1) for number in numbers if isinstance(number, int)]
    else:
        pair = (argument(event, 1, "dim0", "axis0"), argument(event, 2, "dim1", "axis1"))
        order = list(range(ndim))
        if ndim and all(isinstance(number, int) for number in pair):
            one, two = (number % max(ndim, 1) for number in pair)
            order[one], order[two] = two, one
    is_turned = event.name in {"H", "mH", "adjoint"} and facts.dtype.startswith("complex")
    mirrored = (
        "; conjugated, by a mark on the tensor that is carried out when it is read" if is_turned else ""
    )
    if order == list(range(ndim)):
        return ["the axes do not change" + mirrored]
    old, new = (", ".join(map(str, axes)) for axes in (order, range(ndim)))
    return [f"axes {old} of the input become axes {new}{mirrored}"]


def _shaped(event: Event) -> list[str]:
    before, after = event.before[0], event.after[0]
    asked = [
        value
        for value in event.args[1:]
        for value in (value if isinstance(value, (tuple, list)) else [value])
    ]
    notes = []
    if (
        -1 in [value for value in asked if isinstance(value, int)]
        and event.name in {"view", "reshape"}
        and len(asked) > 1
    ):
        at = [value for value in asked if isinstance(value, int)].index(-1)
        if at < len(after.shape):
            notes.append(f"-1 was worked out: {after.shape[at]}")
    if event.name == "view" and before.dtype != after.dtype:
        notes.append(f"the same bytes, read as {after.dtype}")
    may_copy = event.name not in {"view", "view_as"}
    if may_copy and before.memory == after.memory and before.shape != after.shape:
        notes.append("a view in this case, but it would be a copy if the strides did not allow one")
    if before.memory != after.memory and before.num_bytes:
        reason = why_not_view(before, after.shape)
        notes.append(f"no view can do this: {reason}" if reason else "")
    return notes


def _contiguous(event: Event) -> list[str]:
    before, after = event.before[0], event.after[0]
    if before.memory == after.memory:
        return ["was contiguous already: nothing is copied, it is the same tensor"]
    return [f"was not contiguous: copied into one row, strides {before.stride} become {after.stride}"]


def _squeezed(event: Event) -> list[str]:
    before, after = event.before[0].shape, event.after[0].shape
    if event.name == "unsqueeze":
        axis = argument(event, 1, "dim")
        return [f"a new axis {axis % len(after)} of size 1" if isinstance(axis, int) else ""]
    gone = len(before) - len(after)
    if gone:
        return [f"{counted(gone, 'axis').replace('axiss', 'axes')} of size 1 removed"]
    there = "" if argument(event, 1, "dim", "axis") is None else " there"
    return [f"no axis of size 1{there}: nothing goes"]


def _joined(event: Event) -> list[str]:
    num, after = len(event.before), event.after[0].shape
    is_new = event.name == "stack" or (
        event.name in {"vstack", "row_stack"} and all(len(facts.shape) < 2 for facts in event.before)
    )
    if event.name in {"vstack", "row_stack"}:
        axis = 0
    elif event.name == "hstack":
        axis = 0 if len(after) == 1 else 1
    else:
        axis = argument(event, 1, "dim", "axis", default=0) % max(len(after), 1)
    if is_new:
        return [f"{counted(num, 'tensor')} laid side by side along a new axis {axis} of size {after[axis]}"]
    is_row = event.name in {"vstack", "row_stack"}  # which takes a vector as one row
    sizes = " + ".join(
        "1" if is_row and len(facts.shape) < 2 else str(facts.shape[axis]) for facts in event.before
    )
    return [f"{counted(num, 'tensor')} joined along axis {axis}: {sizes} = {after[axis]}"]


def _repeated(event: Event) -> list[str]:
    before, after = event.before[0].shape, event.after[0].shape
    if event.name == "repeat_interleave":
        axis = argument(event, 2, "dim")
        if axis is None:
            num = math.prod(before)
            return [f"flattened, then each element is repeated in its place: {num} become {after[0]}"]
        axis %= len(before)
        return [f"each slice of axis {axis} is repeated in its place: {before[axis]} become {after[axis]}"]
    if event.name in {"expand", "expand_as", "broadcast_to"}:
        axes = event.after[0].expanded_axes
        what = f"stride 0 along {axes_words(axes)}: " if axes else ""
        return [f"{what}no memory is added, the repeated elements are one cell each; clone() before writing"]
    return ["the whole is repeated; each repetition is a separate copy (expand would add no memory)"]


def _distances(event: Event) -> list[str]:
    one, two = event.before[:2]
    rows = f"row i of the first ({one.shape[-2]} rows) and row j of the second ({two.shape[-2]} rows)"
    return [f"result[i, j] is the distance between {rows}, over {counted(one.shape[-1], 'column')}"]


def _multiplied(event: Event) -> list[str]:
    tensors = [facts for facts in event.before if facts.shape][:2]
    if len(tensors) < 2:
        return []
    one, two = tensors
    inner = f"the {one.shape[-1]} of the last axis of {written(one.shape)}"
    other = -1 if event.name == "linear" or len(two.shape) == 1 else -2
    return [
        f"{inner} and of axis {len(two.shape) + other} of {written(two.shape)} are multiplied and summed away"
    ]


def _indexed(event: Event) -> list[str]:
    index = argument(event, 1, "indices", default=None)
    if event.shared:
        return []  # a tensor of one number picks as the number itself would: a view
    parts = index if isinstance(index, tuple) else (index,)
    if any(isinstance(part, Tensor) and str(part.dtype) in {"torch.bool", "torch.uint8"} for part in parts):
        return ["a mask picks elements: their number is known only at run time, so they are copied"]
    if any(isinstance(part, (Tensor, list, np.ndarray)) for part in parts):
        return ["an index made of numbers in a list or tensor picks elements by copying them"]
    return []


def _length(event: Event) -> list[str]:
    return [f"{event.value}: the size of axis 0 of {written(event.before[0].shape)}"]


def _embedded(event: Event) -> list[str]:
    shapes = [facts.shape for facts in event.before]
    return [f"{counted(math.prod(shapes[0]), 'row')} of the table {written(shapes[1])}, one for each index"]


def _missing(event: Event) -> list[str]:
    values = event.after[0].values
    if values is None:
        return []
    num = sum(map(bool, values))
    return [f"{num} of {counted(len(values), 'element')} {'is' if num == 1 else 'are'} NaN"]


def _split(event: Event) -> list[str]:
    return [f"{counted(len(event.after), 'piece')}, all in the same memory"]


def _cut(event: Event) -> list[str]:
    """Say what becomes of the gradient, for the two ways of leaving autograd."""
    if event.name == "detach":
        then = "backward raises if it needs what was changed"
    else:
        then = "backward does NOT notice and may give wrong gradients"
    return [f"no gradient flows back through it; writing to it changes the original, and {then}"]


def _backward(_: Event) -> list[str]:
    return ["gradients are added to the .grad of the leaves that the graph leads to"]


def _uninitialised(_: Event) -> list[str]:
    return ["its memory is not initialized: the values are arbitrary"]


_GROUPS: list[tuple[str, Callable[[Event], list[str]]]] = [
    ("normalize softmax log_softmax", _normalised),
    ("cumsum cumprod sort", _scanned),
    ("T mT H mH t adjoint permute transpose swapaxes swapdims", _moved),
    ("view reshape flatten ravel reshape_as view_as", _shaped),
    ("contiguous", _contiguous),
    ("squeeze unsqueeze", _squeezed),
    ("cat concat concatenate stack vstack row_stack hstack", _joined),
    ("repeat repeat_interleave expand expand_as broadcast_to tile", _repeated),
    ("cdist", _distances),
    ("matmul mm bmm linear rmatmul", _multiplied),
    ("getitem", _indexed),
    ("len", _length),
    ("embedding", _embedded),
    ("isnan", _missing),
    ("chunk split unbind tensor_split", _split),
    ("detach data", _cut),
    ("backward", _backward),
    ("empty empty_like new_empty empty_strided", _uninitialised),
]
_SPEAKERS = {name: speak for names, speak in _GROUPS for name in names.split()}

JOINING = _words("cat concat concatenate stack vstack row_stack hstack block_diag")
COPYING = JOINING | _words(
    "clone contiguous reshape flatten ravel to float double half int long bool type tensor as_tensor "
    "getitem repeat repeat_interleave tile flip roll index_select gather masked_select take copy "
    "resolve_conj resolve_neg cpu cuda tolist array take_along_dim rot90 narrow_copy Tensor asarray "
    "fliplr flipud"
)
"""Operations whose new memory holds values of the input, unchanged."""
