"""Why an operation failed, in terms of axes: added to torch's own message."""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from truestep.tensor.meaning import BROADCASTING, JOINING, argument
from truestep.tensor.shapes import misfit, why_not_view, written
from truestep.tensor.trace import Event

_PRODUCTS = {"matmul", "mm", "bmm", "linear", "rmatmul", "mv", "dot"}


def reason(event: Event) -> str:
    """Return which axes do not fit and what to do; empty if torch's message is all there is to say."""
    name = event.name.rstrip("_")
    if name in {"view", "reshape", "view_as"}:
        return _view(event)
    if name in BROADCASTING:
        return _broadcast(event)
    if name in _PRODUCTS:
        return _product(event)
    if name in JOINING - {"block_diag"}:
        return _joining(event)
    return _other(event)


def _view(event: Event) -> str:
    asked = _asked(event)
    if not event.before or asked is None:
        return ""
    facts, new = event.before[0], asked
    known = math.prod(size for size in new if size != -1)
    if -1 in new and known:
        new = [math.prod(facts.shape) // known if size == -1 else size for size in new]
    if math.prod(new) != math.prod(facts.shape):
        return f"{written(facts.shape)} has {math.prod(facts.shape)} elements, {written(asked)} does not"
    why = why_not_view(facts, new)
    return f"{why}. reshape() would copy instead" if why else ""


def _asked(event: Event) -> list[int] | None:
    """Return the shape that was asked for; None if it was another dtype, or cannot be read."""
    by_name = [event.kwargs[name] for name in ("shape", "size", "other") if name in event.kwargs]
    given: Sequence[Any] = event.args[1:] or by_name
    if len(given) == 1 and isinstance(given[0], (tuple, list, Tensor)):
        given = given[0].shape if isinstance(given[0], Tensor) else given[0]
    elif not given:
        return None
    return list(given) if all(isinstance(size, int) for size in given) else None


def _broadcast(event: Event) -> str:
    shapes = [facts.shape for facts in event.before]
    for at, first in enumerate(shapes):
        for second in shapes[at + 1 :]:
            if text := misfit(first, second):
                return text
    return _written_leaf(event)


def _product(event: Event) -> str:
    shapes = [facts.shape for facts in event.before if facts.shape]
    if len(shapes) < 2:
        return ""
    one, two = shapes[:2]
    at = len(two) - 1 if event.name == "linear" or len(two) == 1 else len(two) - 2
    if one[-1] == two[at]:
        return misfit(one[:-2], two[:-2])
    hint = _transposed_hint(one, two) if event.name != "linear" else ""
    return (
        f"the last axis of {written(one)} has {one[-1]}, axis {at} of {written(two)} has {two[at]}: "
        f"they are summed over together and must be equal{hint}"
    )


def _transposed_hint(one: Sequence[int], two: Sequence[int]) -> str:
    if len(two) > 1 and one[-1] == two[-1]:
        return f". The last axis of the second is {two[-1]}: transpose it with .mT"
    return ""


def _joining(event: Event) -> str:
    shapes = [facts.shape for facts in event.before]
    if not shapes:
        return ""
    axis = argument(event, 1, "dim", "axis", default=0)
    if event.name in {"vstack", "row_stack"}:
        shapes, axis = [(1,) * (2 - len(shape)) + shape for shape in shapes], 0
    elif event.name == "hstack":
        shapes = [shape or (1,) for shape in shapes]
        axis = 0 if len(shapes[0]) == 1 else 1
    listed = ", ".join(map(written, shapes))
    if len({len(shape) for shape in shapes}) > 1:
        return f"the shapes {listed} have different numbers of axes"
    if len(set(shapes)) < 2:
        return ""
    kept = "all axes" if event.name == "stack" else f"all axes but axis {axis}"
    return f"the shapes {listed} must be equal in {kept}"


def _other(event: Event) -> str:
    if event.name == "backward" and event.before and math.prod(event.before[0].shape) != 1:
        shape = written(event.before[0].shape)
        return (
            f"the tensor has shape {shape}, so backward needs a gradient of that shape passed in: "
            "y.backward(torch.ones_like(y)), or make it one number first: y.sum().backward()"
        )
    if event.name == "embedding":
        return "an embedding is indexed with a tensor of integers: torch.tensor([2013])"
    if event.name == "numpy" and event.before and event.before[0].requires_grad:
        return "an array cannot record gradients: x.detach().numpy() shares the memory, without them"
    return _written_leaf(event)


def _written_leaf(event: Event) -> str:
    facts = event.before[0] if event.before else None
    if facts is not None and event.name.endswith("_") and facts.requires_grad and facts.is_leaf:
        return "a leaf that requires a gradient may be written to only under torch.no_grad()"
    return ""
