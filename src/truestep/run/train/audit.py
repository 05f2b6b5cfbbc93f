"""Audits: processes compute each other's lanes again and compare what they hold; a corrupt one is named.

Owns who audits whom, and the verdict. The loop over lanes is `step`'s, what a gradient's hash is `bits`'.
"""

import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, NoReturn

import torch
from torch import nn
from torch.optim import Optimizer

from truestep.errors import AuditFailed, UsageError, shared
from truestep.record import Record, step_number
from truestep.run.data import filled_lanes
from truestep.run.dist import World, schedule
from truestep.run.train.carried import state_hashes

_PRIME, _MASK = 1099511628211, 2**63 - 1

_AGAIN = "Tried again, it was wrong again."
_ONCE = "Tried again, it was right."
_ADVICE = (
    "Either a device computes wrong bits: take it out and resume with the same command. Or the loop does "
    "something else on each process: it draws from a generator that nothing seeds, or keeps state from "
    "lane to lane outside of modules. Correct that first: `truestep verify` finds it."
)


class Assignment(NamedTuple):
    """Who computes one lane, who computes it again, and who decides if they differ."""

    lane: int
    owner: int
    auditor: int
    arbiter: int | None
    """None where there are two processes only."""

    @property
    def ranks(self) -> list[int]:
        """All who are involved."""
        return [rank for rank in (self.owner, self.auditor, self.arbiter) if rank is not None]


@dataclass(frozen=True, kw_only=True)
class AuditPlan:
    """Which step has an audit, and of whom: arithmetic that all processes know."""

    every: int
    rank: int
    size: int
    num_lanes: int
    is_dealt: bool

    def at(self, step: int, num_samples: int) -> Assignment | None:
        """Return the audit of a step; None for a step without one."""
        number, rest = divmod(step + 1, self.every)
        if rest:
            return None
        return assign(number - 1, _shares(num_samples, self.size, self.num_lanes, self.is_dealt))

    def extra_lane(self, step: int, num_samples: int) -> int | None:
        """Return the lane that this process needs besides its own."""
        found = self.at(step, num_samples)
        return found.lane if found and self.rank in found.ranks[1:] else None


@cache
def _shares(num_samples: int, size: int, num_lanes: int, is_dealt: bool) -> list[list[int]]:
    filled = filled_lanes(num_samples, num_lanes=num_lanes)
    plan = schedule(filled, size=size, num_lanes=num_lanes, is_dealt=is_dealt)
    return [plan.lanes_of(rank) for rank in range(size)]


def assign(number: int, shares: Sequence[Sequence[int]]) -> Assignment:
    """Return who takes part in the audit of this number: in turn, so every process is audited and audits.

    >>> assign(5, [[0, 1], [2, 3], [4, 5]])
    Assignment(lane=5, owner=2, auditor=1, arbiter=0)
    """
    size, lap = len(shares), number // len(shares)
    owner = next(rank for turn in range(size) if shares[rank := (number + turn) % size])
    auditor = (owner + 1 + lap % (size - 1)) % size
    arbiter = (owner + 1 + (lap + 1) % (size - 1)) % size if size > 2 else None
    return Assignment(shares[owner][lap % len(shares[owner])], owner, auditor, arbiter)


class Verdict(NamedTuple):
    """Who is wrong: one process, or all that cannot be told apart; and whether it happened again."""

    ranks: list[int]
    repeats: bool


def decide(results: Mapping[int, Sequence[int]]) -> Verdict:
    """Return who is wrong, from what each process computed for one lane: one result for each try.

    >>> decide({0: [5, 5], 1: [7, 7], 2: [7]})
    Verdict(ranks=[0], repeats=True)
    >>> decide({0: [5, 7], 1: [7, 7]})
    Verdict(ranks=[0], repeats=False)
    """
    votes = Counter(value for tries in results.values() for value in set(tries))
    (best, count), *others = votes.most_common()
    if count > 1 and not (others and others[0][1] == count):
        wrong = [rank for rank, tries in results.items() if set(tries) != {best}]
        return Verdict(wrong, all(results[rank][-1] != best for rank in wrong))
    unstable = [rank for rank, tries in results.items() if len(set(tries)) > 1]
    return Verdict(unstable if len(unstable) == 1 else list(results), repeats=True)


def mix(hashes: Iterable[int]) -> int:
    """Return one number of 63 bits for several, in which their order counts."""
    value = 1
    for item in hashes:
        value = (value * _PRIME ^ item ^ item >> 63) & _MASK
    return value


class Audit:
    """The audits of one run, in one of its processes."""

    def __init__(self, plan: AuditPlan | None, *, world: World, record: Record, device: torch.device) -> None:
        self._plan, self._world, self._record, self._device = plan, world, record, device
        self._passed: dict[int, int] = {}
        """For each process: the last step at which it passed an audit."""
        self.num_equal = 0

    def at(self, step: int, num_samples: int) -> Assignment | None:
        """Return the audit of a step; None for a step without one."""
        return self._plan.at(step, num_samples) if self._plan is not None else None

    def exchange(self, value: int) -> list[int]:
        """Return every process's number."""
        vector = torch.zeros(self._world.size, dtype=torch.int64)
        vector[self._world.rank] = value
        self._world.add(vector)
        return vector.tolist()

    def agrees(self, assignment: Assignment, results: Sequence[int], *, step: int) -> bool:
        """Return whether owner and auditor of a lane have the same bits."""
        owner, auditor = assignment.owner, assignment.auditor
        is_equal = results[owner] == results[auditor]
        if is_equal:
            self.num_equal += 1
            self._passed |= {owner: step, auditor: step}
        return is_equal

    def fail_lane(
        self, assignment: Assignment, *, first: Sequence[int], again: Sequence[int], step: int
    ) -> NoReturn:
        """End the run: two processes have computed one lane with other bits."""
        results = {rank: [first[rank], again[rank]] for rank in assignment.ranks[:2]}
        if assignment.arbiter is not None:
            results[assignment.arbiter] = [again[assignment.arbiter]]
        what = f"computed lane {assignment.lane} with other bits"
        self._fail(decide(results), list(results), what=what, step=step, lane=assignment.lane)

    def compare_replicas(self, tracked: Mapping[str, Any], *, step: int) -> None:
        """End the run where a process holds other weights or other state than the others."""
        if self._world.size == 1:
            return
        first = self.exchange(mix(_hashes(tracked).values()))
        if len(set(first)) == 1:
            return
        hashes = _hashes(tracked)  # once more: does the memory hold it, or was it read wrong?
        again = self.exchange(mix(hashes.values()))
        common = {value for value, count in Counter(first).items() if 2 * count > len(first)}
        wrong = [rank for rank, value in enumerate(first) if value not in common]
        tables = self._world.gather(hashes)
        usual = next((tables[rank] for rank in range(len(first)) if rank not in wrong), tables[0])
        names = [name for name in hashes if any(tables[rank].get(name) != usual.get(name) for rank in wrong)]
        where = ", ".join(names[:1]) or "what it tracks"
        more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
        if names and not any(_is_trained(name, tracked) for name in names):
            self._fail_state(f"{where}{more}", step=step)
        verdict = Verdict(wrong, repeats=all(again[rank] not in common for rank in wrong))
        self._fail(verdict, range(len(first)), what=f"holds other bits in {where}{more}", step=step)

    def _fail_state(self, what: str, *, step: int) -> NoReturn:
        """End the run: what differs is nothing that an optimizer updates."""
        raise shared(
            UsageError(
                f"step {step_number(step)}: the tracked state {what} differs between processes, and the "
                f"weights that optimizers update do not. The likely cause is code that changes it for each "
                f"lane, in forward or in `for batch in step:`. A process then sees its own lanes only, "
                f"and only that of the first would be saved. Change it after that loop, once per step, "
                f"from values that all processes share, or run on one process. If no such code changes it, "
                f"the memory of one device is damaged."
            )
        )

    def _fail(
        self, verdict: Verdict, ranks: Iterable[int], *, what: str, step: int, **facts: Any
    ) -> NoReturn:
        places = self._world.gather((platform.node(), str(self._device)))
        hosts, devices = zip(*(places[rank] for rank in verdict.ranks), strict=True)
        self._record.write(
            "audit",
            step=step,
            ranks=verdict.ranks,
            hosts=list(hosts),
            devices=list(devices),
            repeats=verdict.repeats,
            what=what,
            **facts,
        )
        named = [
            f"process {rank} ({host}, {device})"
            for rank, host, device in zip(verdict.ranks, hosts, devices, strict=True)
        ]
        others = [f"process {rank}" for rank in ranks if rank not in verdict.ranks]
        if others:
            found = f"{_listed(named)} {what} than {_listed(others)}"
        else:
            found = f"{_listed(named)} differ, and no other process decides which is wrong: each {what}"
        since = min((self._passed.get(rank, -1) for rank in verdict.ranks), default=-1)
        doubt = (
            f"Steps after {step_number(since):,} are in doubt."
            if since >= 0
            else "All steps so far are in doubt."
        )
        raise shared(
            AuditFailed(
                f"step {step_number(step)}: {found}. {_AGAIN if verdict.repeats else _ONCE} "
                f"No update was made with it. {doubt} {_ADVICE}",
                ranks=tuple(verdict.ranks),
                repeats=verdict.repeats,
            )
        )


def _listed(names: Sequence[str]) -> str:
    if len(names) > 4:
        return f"{', '.join(names[:3])} and {len(names) - 3:,} more"
    return " and ".join(names)


def _hashes(tracked: Mapping[str, Any]) -> dict[str, int]:
    return state_hashes({name: item.state_dict() for name, item in tracked.items()})


def _is_trained(name: str, tracked: Mapping[str, Any]) -> bool:
    """Whether an optimizer updates or keeps what has this name: equal gradients keep it equal."""
    owner, _, path = name.partition(".")
    item = tracked[owner]
    if not isinstance(item, nn.Module):
        return isinstance(item, Optimizer)
    optimizers = [other for other in tracked.values() if isinstance(other, Optimizer)]
    ids = {id(one) for other in optimizers for group in other.param_groups for one in group["params"]}
    return id(dict(item.named_parameters(remove_duplicate=False)).get(path)) in ids
