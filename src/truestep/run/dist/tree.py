"""The tree: the one binary tree over the lane index in which everything that crosses lanes is summed.

Owns the order of sums. Which process holds which lanes is arithmetic here; moving data is not done here.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import torch

from truestep.errors import UsageError

T = TypeVar("T")

Node = tuple[int, int]
"""An aligned subtree: its first lane and its number of lanes, a power of two that divides the first lane."""

VERSION = 2
"""Part of the recipe: raise it when the same gradients would be summed in another order."""


def lanes_of(rank: int, *, size: int, num_lanes: int, is_dealt: bool = False) -> range:
    """Return the lanes that one process computes: contiguous, or dealt out in turn like cards.

    Contiguous lanes are summed by the process itself as far as the tree allows. Dealt ones are neighbours in
    the tree when they run at the same time: for sums that are taken over processes after every lane.

    >>> [list(lanes_of(rank, size=3, num_lanes=8)) for rank in range(3)]
    [[0, 1], [2, 3, 4], [5, 6, 7]]
    >>> [list(lanes_of(rank, size=3, num_lanes=8, is_dealt=True)) for rank in range(3)]
    [[0, 3, 6], [1, 4, 7], [2, 5]]
    """
    if size > num_lanes:
        raise UsageError(
            f"lanes must be at least the number of processes, got lanes={num_lanes} on {size} processes. "
            f"Pass lanes={size} or more."
        )
    if is_dealt:
        return range(rank, num_lanes, size)
    return range(rank * num_lanes // size, (rank + 1) * num_lanes // size)


def maximal_subtrees(lanes: range) -> list[Node]:
    """Cut contiguous lanes into the largest aligned subtrees: the fewest sums from which the tree can go on.

    >>> maximal_subtrees(range(3, 8))
    [(3, 1), (4, 4)]
    """
    nodes: list[Node] = []
    start = lanes.start
    while start < lanes.stop:
        size = 1
        while start % (2 * size) == 0 and start + 2 * size <= lanes.stop:
            size *= 2
        nodes.append((start, size))
        start += size
    return nodes


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

    def push(self, lane: int, value: T, *, num_lanes: int = 1) -> None:
        """Add one lane, or the sum of the aligned subtree of `num_lanes` lanes that begins there.

        They come in rising order, and lanes without samples do not come at all.
        """
        start, size = lane, num_lanes
        while self._open and self._open[-1][1] == size and self._open[-1][0] == start ^ size:
            # bits: the left subtree is always the left operand, whoever computes the sum.
            start, _, left = self._open.pop()
            value, size = self._add(left, value), 2 * size
        self._open.append((start, size, value))

    @property
    def open(self) -> list[tuple[int, int, T]]:
        """The partial sums so far, by rising lanes: first lane, number of lanes, sum."""
        return list(self._open)

    def clear(self) -> None:
        """Forget all lanes pushed."""
        self._open = []

    def take(self) -> T:
        """Return the sum over all lanes pushed (at least one) and reset."""
        nodes, self._open = self._open, []
        return self._fold(nodes)

    def take_nodes(self, nodes: Iterable[Node]) -> list[T | None]:
        """Return the sum of each of these subtrees, None for one without any lane, and reset.

        The subtrees hold all lanes pushed: those of one process are `maximal_subtrees` of its lanes.
        """
        pushed, self._open = self._open, []
        parts = [[node for node in pushed if start <= node[0] < start + size] for start, size in nodes]
        assert sum(map(len, parts)) == len(pushed), "a lane was pushed that is in none of the subtrees"
        return [self._fold(part) if part else None for part in parts]

    def _fold(self, nodes: list[tuple[int, int, T]]) -> T:
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


class ScatteredSum(Generic[T]):
    """Sums over lanes in tree order when lanes finish in any order, as those of several processes do.

    The lanes to come are known beforehand, so siblings are added as soon as both are complete and an only
    child moves up at once: few partial sums are alive. `add(left, right)` may write into left.

    >>> total = ScatteredSum[str](lambda left, right: f"({left}+{right})", lanes=range(6))
    >>> for lane in (4, 0, 3, 1, 5, 2):
    ...     total.push(lane, str(lane))
    >>> total.take()
    '(((0+1)+(2+3))+(4+5))'
    """

    def __init__(self, add: Callable[[T, T], T], *, lanes: Iterable[int]) -> None:
        self._add = add
        self._open: dict[Node, T] = {}
        self.expect(lanes)

    def expect(self, lanes: Iterable[int]) -> None:
        """Set the lanes of the next sum, without those that have no samples."""
        if self._open:
            raise UsageError(f"a sum is under way, waiting for {self._missing()}. Call take() first.")
        self._lanes = sorted(set(lanes))
        self._awaited = set(self._lanes)

    def push(self, lane: int, value: T) -> None:
        """Add one lane."""
        if lane not in self._awaited:
            raise UsageError(
                f"lane {lane} is not awaited, only {self._missing()}. Push each expected lane once."
            )
        self._awaited.remove(lane)
        start, size = lane, 1
        while not self._is_root(start, size):
            sibling = start ^ size, size
            if sibling in self._open:
                other = self._open.pop(sibling)
                # bits: the left operand is the lower lane, whichever of the two came first.
                value = self._add(value, other) if start < sibling[0] else self._add(other, value)
            elif self._num_expected(*sibling):
                break
            start, size = min(start, sibling[0]), 2 * size
        self._open[start, size] = value

    @property
    def open(self) -> dict[Node, T]:
        """The partial sums so far; what is put here instead of one has to be equal to it."""
        return self._open

    def take(self) -> T:
        """Return the sum over all expected lanes (at least one) and reset for the same lanes."""
        if self._awaited or not self._open:
            raise UsageError(f"the sum is not complete: it waits for {self._missing()}. Push them first.")
        ((_, total),) = self._open.items()
        self._open = {}
        self._awaited = set(self._lanes)
        return total

    def _num_expected(self, start: int, size: int) -> int:
        return bisect_left(self._lanes, start + size) - bisect_left(self._lanes, start)

    def _is_root(self, start: int, size: int) -> bool:
        return start <= self._lanes[0] and self._lanes[-1] < start + size

    def _missing(self) -> str:
        return "lanes " + ", ".join(map(str, sorted(self._awaited))) if self._awaited else "no lane"


Tensors = list[torch.Tensor | None]


def add_tensors(left: Tensors, right: Tensors) -> Tensors:
    """Add right into left, in place where both are there. A missing part is not zero: it is left out."""
    both = [(a, b) for a, b in zip(left, right, strict=True) if a is not None and b is not None]
    if both:
        torch._foreach_add_([a for a, _ in both], [b for _, b in both])
    return [b if a is None else a for a, b in zip(left, right, strict=True)]
