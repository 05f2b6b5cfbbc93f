"""The schedule of one batch: which process computes which lane, in which round. Arithmetic, known to all."""

from collections.abc import Sequence
from dataclasses import dataclass

from truestep.dist.tree import lanes_of


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Who computes what. A process with fewer lanes than another has nothing to do in the last rounds."""

    rounds: list[list[int | None]]
    """For each round and rank: the lane, or None."""
    is_full: bool
    """Whether every lane has samples."""

    def lanes_of(self, rank: int) -> list[int]:
        """Return the lanes with samples that one process computes, in rising order."""
        return [lane for turn in self.rounds if (lane := turn[rank]) is not None]


def schedule(filled: Sequence[int], *, size: int, num_lanes: int) -> Schedule:
    """Return who computes which of the lanes that have samples.

    >>> schedule([0, 1, 2, 3, 4], size=2, num_lanes=5).rounds
    [[0, 2], [1, 3], [None, 4]]
    """
    per_rank = [
        [lane for lane in filled if lane in lanes_of(rank, size=size, num_lanes=num_lanes)]
        for rank in range(size)
    ]
    num_rounds = max(map(len, per_rank))
    rounds = [
        [lanes[turn] if turn < len(lanes) else None for lanes in per_rank] for turn in range(num_rounds)
    ]
    return Schedule(rounds=rounds, is_full=len(filled) == num_lanes)
