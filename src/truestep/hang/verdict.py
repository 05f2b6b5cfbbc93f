"""The verdict: from where each rank stands to who waits for whom for ever.

Owns the analysis, a pure function whose cost is proportional to the number of ranks. A rank that may still
come is never blamed: without proof there is no verdict.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from truestep.watch.evidence.stalls import Collective, Standing

_SAME_SIZES = ("all_reduce", "allreduce", "broadcast", "reduce", "all_gather", "allgather", "reduce_scatter")
"""Collectives in which all ranks bring equally large tensors of one kind."""
Key = tuple[str | int, ...]
"""What ranks meet in: a group and the number of the collective; for a pair, both ranks too."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Why a job cannot continue."""

    odd: tuple[Standing, ...]
    """The ranks that are elsewhere."""
    waiting: tuple[Standing, ...]
    """The ranks that wait for them."""
    kind: str
    """`mismatch`: both wait in different collectives; `absent`: those who wait do so for one that cannot
    come."""
    is_even: bool = False
    """Whether it could as well be seen the other way round: as many are on each side."""
    size: int = 0

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for the same verdict at two looks."""
        return (self.kind, tuple(item.rank for item in self.odd), tuple(item.rank for item in self.waiting))


def find_verdict(standings: Iterable[Standing]) -> Verdict | None:
    """Return who waits for whom in vain; None if every rank may still continue, or that is not certain."""
    by_rank = {item.rank: item for item in standings}
    if any(item.doing == "raised" for item in by_rank.values()):
        return None  # its traceback is the answer
    return _find_mismatch(by_rank) or _find_absent(by_rank)


def differs(one: Collective, other: Collective) -> str:
    """Return in what two collectives differ that ranks should enter together; nothing if they match."""
    if one.name != other.name:
        return "operation"
    if one.name.lstrip("_") not in _SAME_SIZES:
        return ""
    if one.dtypes[:1] != other.dtypes[:1]:
        return "dtype"
    return "shape" if one.num_elements != other.num_elements else ""


def _find_mismatch(by_rank: dict[int, Standing]) -> Verdict | None:
    """Find ranks of one group that wait in different collectives though it is the same in number."""
    first: dict[str, int] = {}
    for item in by_rank.values():
        pending = item.pending if item.doing == "waiting" else None
        if pending is not None and not pending.is_pair:
            first[pending.group] = min(first.get(pending.group, pending.number), pending.number)
    for group, number in sorted(first.items()):
        sides: dict[tuple[object, ...], list[Standing]] = defaultdict(list)
        for item in by_rank.values():
            pending = item.pending if item.doing == "waiting" else None
            if pending is not None and (pending.group, pending.number) == (group, number):
                sides[_signature(pending)].append(item)
        if len(sides) > 1:
            return _divide(list(sides.values()), kind="mismatch", size=_size(by_rank))
    return None


def _signature(pending: Collective) -> tuple[object, ...]:
    if pending.name.lstrip("_") not in _SAME_SIZES:
        return (pending.name,)
    return (pending.name, pending.dtypes[:1], pending.num_elements)


def _find_absent(by_rank: dict[int, Standing]) -> Verdict | None:
    """Find ranks that wait for one that is stuck, has ended, or waits for them in another group."""
    keys = {item.rank: _key(item) for item in by_rank.values() if item.doing == "waiting" and item.pending}
    absent: dict[Key, list[int]] = {}
    for rank, key in keys.items():
        if key not in absent:
            absent[key] = _absent_from(by_rank[rank], by_rank)
    lost = {item.rank for item in by_rank.values() if item.doing in ("stuck", "ended")}
    if any(
        item.error for item in by_rank.values()
    ):  # the collective has failed: who was elsewhere came too late
        lost |= {item.rank for item in by_rank.values() if item.doing == "living"}
    held = _never_released(keys, absent, lost=lost)
    if not held:
        return None
    waiting = [by_rank[rank] for rank in sorted(held)]
    causes = sorted({rank for key in {keys[rank] for rank in held} for rank in absent[key] if rank in lost})
    size = _size(by_rank)
    if causes:
        return Verdict(
            odd=tuple(by_rank[rank] for rank in causes), waiting=tuple(waiting), kind="absent", size=size
        )
    sides: dict[Key, list[Standing]] = defaultdict(list)
    for item in waiting:
        sides[keys[item.rank]].append(item)
    if len(sides) < 2:
        return None
    strayed = _strayed(list(sides.values()), [rank for key in sides for rank in absent[key]])
    if strayed:
        rest = tuple(item for item in waiting if item not in strayed)
        return Verdict(odd=tuple(strayed), waiting=rest, kind="mismatch", size=size)
    return _divide(list(sides.values()), kind="mismatch", size=size)


def _strayed(sides: list[list[Standing]], missed: list[int]) -> list[Standing]:
    """Return ranks of the largest side that others miss, if they came there from another line than its rest.

    They are in the right collective too early: those who wait in vain are not the odd ones then.
    """
    side = max(sides, key=len)
    found = [item for item in side if item.rank in missed]
    places = {item.place for item in side if item.rank not in missed}
    is_apart = len(places) == 1 and not any(item.place in places for item in found)
    return found if is_apart and len(found) < len(side) - len(found) else []


def _key(item: Standing) -> Key:
    pending = item.pending
    assert pending is not None
    if pending.is_pair:
        return (pending.name, item.rank, *pending.members[:1])
    return (pending.group, pending.number)


def _absent_from(item: Standing, by_rank: dict[int, Standing]) -> list[int]:
    """Return the ranks that have not entered what this one waits in."""
    pending = item.pending
    assert pending is not None
    if pending.is_pair:
        return [peer for peer in pending.members if not _answers(by_rank.get(peer), item)]
    return [rank for rank in pending.members if not _has_entered(by_rank.get(rank), pending)]


def _answers(peer: Standing | None, item: Standing) -> bool:
    """Whether the other rank of a pair is in the other half of the same exchange."""
    theirs, ours = (None if one is None else one.pending for one in (peer, item))
    if theirs is None or ours is None:
        return False
    return theirs.is_pair and theirs.name != ours.name and item.rank in theirs.members


def _has_entered(item: Standing | None, pending: Collective) -> bool:
    if item is None:
        return False
    theirs = item.pending
    if item.doing == "waiting" and theirs is not None and theirs.group == pending.group:
        return theirs.number >= pending.number
    return (item.made or {}).get(pending.group, 0) >= pending.number


def _never_released(keys: dict[int, Key], absent: dict[Key, list[int]], *, lost: set[int]) -> set[int]:
    """Return the ranks that wait, directly or through others, for one that is lost, or in a circle.

    Begins with all that wait and releases those for whom everybody may still come, until nothing changes.
    """
    members: dict[Key, list[int]] = defaultdict(list)
    for rank, key in keys.items():
        members[key].append(rank)
    num_held = {key: sum(rank in lost or rank in keys for rank in ranks) for key, ranks in absent.items()}
    waits_for: dict[int, list[Key]] = defaultdict(list)
    for key, ranks in absent.items():
        for rank in ranks:
            waits_for[rank].append(key)
    held = set(keys)
    free = [key for key, num in num_held.items() if not num]
    while free:
        for rank in members[free.pop()]:
            held.discard(rank)
            for key in waits_for[rank]:
                num_held[key] -= 1
                if not num_held[key]:
                    free.append(key)
    return held


def _divide(sides: list[list[Standing]], *, kind: str, size: int) -> Verdict:
    """Return the smaller side as the odd one; of equal sides the one with the higher ranks."""
    counts = Counter(len(side) for side in sides)
    ordered = sorted(sides, key=lambda side: (-len(side), side[0].rank))
    waiting = ordered[0]
    odd = sorted((item for side in ordered[1:] for item in side), key=lambda item: item.rank)
    is_even = counts[len(waiting)] > 1
    return Verdict(odd=tuple(odd), waiting=tuple(waiting), kind=kind, is_even=is_even, size=size)


def _size(by_rank: dict[int, Standing]) -> int:
    return max((item.size for item in by_rank.values()), default=0)


def name_ranks(standings: Sequence[Standing], *, max_shown: int = 6) -> str:
    """Return `rank 1`, `ranks 0 and 2`, `ranks 0 to 4,094`."""
    ranks = sorted(item.rank for item in standings)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], rank]
        else:
            spans.append([rank])
    words: list[str] = []
    for span in spans:
        words += (
            [f"{span[0]:,} to {span[-1]:,}"] if span[-1] - span[0] > 1 else [f"{rank:,}" for rank in span]
        )
    if len(words) > max_shown:
        words = [*words[: max_shown - 1], f"{len(words) - max_shown + 1} more"]
    return f"ranks {', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else f"ranks {words[0]}"
