"""The tree: the one binary tree over the lane index in which everything that crosses lanes is summed.

Owns the order of sums. Which process holds which lanes is arithmetic here; moving data is not done here.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

import torch

from truestep.errors import UsageError

T = TypeVar("T")

VERSION = 1
"""Part of the recipe: raise it when the same gradients would be summed in another order."""


def lanes_of(rank: int, *, size: int, num_lanes: int) -> range:
    """Return the lanes that one process computes: contiguous, any size from 1 to `num_lanes`.

    >>> [list(lanes_of(rank, size=3, num_lanes=8)) for rank in range(3)]
    [[0, 1], [2, 3, 4], [5, 6, 7]]
    """
    if size > num_lanes:
        raise UsageError(
            f"lanes must be at least the number of processes, got lanes={num_lanes} on {size} processes. "
            f"Pass lanes={size} or more."
        )
    return range(rank * num_lanes // size, (rank + 1) * num_lanes // size)


class LaneSum(Generic[T]):
    """Sums over lanes in tree order while lanes finish, as a binary counter.

    At most log2(lanes) + 1 partial sums are alive. `add(left, right)` may write into left.

    >>> total = LaneSum[str](lambda left, right: f"({left}+{right})")
    >>> for lane in range(6):
    ...     total.push(lane, str(lane))
    >>> total.take()
    '(((0+1)+(2+3))+(4+5))'
    """

    def __init__(self, add: Callable[[T, T], T]) -> None:
        self._add = add
        self._open: list[tuple[int, int, T]] = []  # (first lane, number of lanes, sum)

    def push(self, lane: int, value: T) -> None:
        """Add one lane; lanes come in rising order, and lanes without samples do not come at all."""
        start, size = lane, 1
        while self._open and self._open[-1][1] == size and self._open[-1][0] == start ^ size:
            # bits: the left subtree is always the left operand, whoever computes the sum.
            start, _, left = self._open.pop()
            value, size = self._add(left, value), 2 * size
        self._open.append((start, size, value))

    def take(self) -> T:
        """Return the sum over all lanes pushed (at least one) and start anew."""
        nodes, self._open = self._open, []
        size = 1
        while len(nodes) > 1:
            nodes, size = self._lift(nodes, size), 2 * size
        return nodes[0][2]

    def _lift(self, nodes: list[tuple[int, int, T]], size: int) -> list[tuple[int, int, T]]:
        """Lift the nodes of one size to the next: pairs are added, an only child moves up as it is."""
        lifted: list[tuple[int, int, T]] = []
        for start, length, value in nodes:
            if length != size:
                lifted.append((start, length, value))
                continue
            parent = start - start % (2 * size)
            if lifted and lifted[-1][:2] == (parent, 2 * size):
                lifted[-1] = (parent, 2 * size, self._add(lifted[-1][2], value))
            else:
                lifted.append((parent, 2 * size, value))
        return lifted


Tensors = list[torch.Tensor | None]


def add_tensors(left: Tensors, right: Tensors) -> Tensors:
    """Add right into left, in place where both are there. A missing part is not zero: it is left out."""
    both = [(a, b) for a, b in zip(left, right, strict=True) if a is not None and b is not None]
    if both:
        torch._foreach_add_([a for a, _ in both], [b for _, b in both])
    return [b if a is None else a for a, b in zip(left, right, strict=True)]
