"""Pictures of tensors: memory as numbered cells, each tensor as its grid of them, shapes that are broadcast.

Owns what a picture shows and where. Facts come from `memory`, figures from `truestep.picture`.
"""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
import torch
from torch import Tensor

from truestep.errors import UsageError
from truestep.picture import Picture
from truestep.tensor.canvas import Canvas
from truestep.tensor.cells import Cells, cells_of
from truestep.tensor.facts import Account, Broadcast, Operation
from truestep.tensor.memory import MAX_VALUES, Ledger, Thing, values_of
from truestep.tensor.panels import draw_pieces
from truestep.tensor.shapes import is_silent
from truestep.tensor.stretching import Side, draw_sides

_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}


def draw(explanation: Account) -> Picture:
    """Draw what `explain` found: memory and tensors, then the operations in which shapes were broadcast.

    >>> import torch, truestep as ts
    >>> x = torch.arange(12).view(3, 4)
    >>> picture = draw(ts.explain(x=x, y=x.T[::2]))
    """
    canvas = Canvas()
    draw_pieces(canvas, cells_of(explanation))
    for operation in explanation.operations:
        if operation.broadcast is not None and any(operation.broadcast.expanded):
            _draw_operation(canvas, operation, operation.broadcast)
    return canvas.picture()


def draw_memory(**tensors: Thing) -> Picture:
    """Draw the memory behind tensors or NumPy arrays, and each of them as a grid of the same cells.

    Equal colours and equal small numbers are the same cell: writing to one is seen in the other. A copy has
    separate memory. The numbers at the arrows show how many elements a step along that axis moves.

    >>> x = torch.arange(12).view(3, 4)
    >>> picture = draw_memory(x=x, y=x.T[::2], copy=x.T.reshape(-1))
    """
    canvas = Canvas()
    draw_pieces(canvas, pieces_of(tensors))
    return canvas.picture()


def pieces_of(tensors: Mapping[str, Thing]) -> list[Cells]:
    """Return the pieces of memory in which tensors or arrays lie."""
    if not tensors:
        raise UsageError("no tensors were given to draw. Give each by a name: draw_memory(x=x, y=x.T)")
    for name, thing in tensors.items():
        if not isinstance(thing, Tensor | np.ndarray):
            raise UsageError(
                f"{name} is a {type(thing).__name__}; tensors and NumPy arrays can be drawn. "
                f"Make a tensor of it: torch.as_tensor({name})"
            )
        if isinstance(thing, Tensor) and thing.layout != torch.strided:
            raise UsageError(
                f"{name} is {thing.layout}, which has no strides. Draw {name}.to_dense() instead."
            )
    ledger = Ledger()
    facts = [ledger.facts(thing, name) for name, thing in tensors.items()]
    return [
        Cells(memory, tuple(tensor for tensor in facts if tensor.memory == memory.label))
        for memory in ledger.memories()
    ]


def draw_broadcast(a: Tensor | Sequence[int], b: Tensor | Sequence[int]) -> Picture:
    """Draw how two tensors, or two shapes, are stretched to a common shape and added element by element.

    Cells that exist are solid, those that broadcasting repeats are pale; beyond 256 elements they show no
    values. Shapes that make every element meet every other, as (N,) with (N, 1), are marked: mostly that was
    not meant.

    >>> picture = draw_broadcast((3, 1), (4,))
    """
    sides = [_side("a", a), _side("b", b)]
    try:
        shape = tuple(torch.broadcast_shapes(sides[0].shape, sides[1].shape))
    except RuntimeError as error:
        raise UsageError(
            f"shapes {sides[0].shape} and {sides[1].shape} do not fit together: aligned at the right, two "
            "sizes must be equal, or one of them 1. Insert an axis of size 1 with unsqueeze(dim), or cut one."
        ) from error
    values = None
    if isinstance(a, Tensor) and isinstance(b, Tensor) and prod(shape) <= MAX_VALUES:
        values = values_of(a.detach() + b.detach())
    canvas = Canvas()
    result = Side(name="a + b", shape=shape, values=values)
    draw_sides(canvas, sides, result=result, sign="+", is_warned=is_silent([side.shape for side in sides]))
    return canvas.picture()


def _side(name: str, thing: Tensor | Sequence[int]) -> Side:
    if isinstance(thing, Tensor):
        return Side(name=name, shape=tuple(thing.shape), values=values_of(thing))
    return Side(name=name, shape=tuple(thing))


def _draw_operation(canvas: Canvas, operation: Operation, broadcast: Broadcast) -> None:
    """Draw an operation's operands stretched to its result, with the values that are known."""
    known = {tensor.name: tensor.values for tensor in operation.inputs}
    sides = [
        Side(name=name, shape=shape, values=known.get(name))
        for name, shape in zip(broadcast.names, broadcast.shapes, strict=True)
    ]
    values = operation.outputs[0].values if len(operation.outputs) == 1 else None
    result = Side(name="result", shape=broadcast.shape, values=values)
    sign = _SIGNS.get(operation.name.removesuffix("_"), ",")
    title = " ".join(operation.code.split())
    draw_sides(canvas, sides, result=result, sign=sign, title=title, is_warned=broadcast.is_silent)
