"""The schedule of one batch: which process computes which lane, in which round. Arithmetic, known to all."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from truestep.run.dist.tree import lanes_of


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


def schedule(filled: Sequence[int], *, size: int, num_lanes: int, is_dealt: bool = False) -> Schedule:
    """Return who computes which of the lanes that have samples, which come in rising order.

    >>> schedule([0, 1, 2, 3, 4], size=2, num_lanes=5).rounds
    [[0, 2], [1, 3], [None, 4]]
    """
    shares = [lanes_of(rank, size=size, num_lanes=num_lanes, is_dealt=is_dealt) for rank in range(size)]
    # Not by asking each lane of each process: with 10,000 of both that took half a minute.
    if is_dealt:
        has_samples = set(filled)
        per_rank: list[Sequence[int]] = [[lane for lane in share if lane in has_samples] for share in shares]
    else:
        ends = [bisect_left(filled, share.stop) for share in shares]
        per_rank = [filled[start:stop] for start, stop in pairwise([0, *ends])]
    num_rounds = max(map(len, per_rank))
    rounds = [
        [lanes[turn] if turn < len(lanes) else None for lanes in per_rank] for turn in range(num_rounds)
    ]
    return Schedule(rounds=rounds, is_full=len(filled) == num_lanes)
