"""Processes of one job side by side, for rules that compare ranks; and evidence for their examples."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from truestep.rules.analysis.loaders import ObservedLoader, find_loaders
from truestep.rules.evidence import Evidence
from truestep.watch import Moment, Process
from truestep.watch.evidence.facts.loading import (
    BatchFetched,
    EpochBegan,
    LoaderMade,
    LoaderOrder,
    LoaderUsed,
    SamplesSeen,
)
from truestep.watch.evidence.facts.passes import BackwardPass, ForwardPass, ParallelMade
from truestep.watch.evidence.kinds import Facts

_JOIN = re.compile(r"^\s*with\s+(?:\w+\.)?[jJ]oin\(", re.MULTILINE)
"""`with model.join():`. Processes and threads are joined too, but not in a `with`."""


def is_parallel(evidence: Evidence) -> bool:
    """Whether all of several ranks train one model: wrapped in DDP, or sharded."""
    made = [item.facts for item in evidence.of(ParallelMade) if item.facts.what != "DataParallel"]
    return len(evidence.processes) > 1 and bool(made) and not any(facts.is_in_group for facts in made)


def loaders_by_rank(evidence: Evidence) -> list[dict[int, ObservedLoader]]:
    """Return the loaders of each rank by number: ranks run one script, so that numbers match."""
    found = []
    for process in evidence.processes:
        alone = Evidence(processes=[process], texts=evidence.texts)
        found.append({loader.number: loader for loader in find_loaders(alone)})
    return found


def shared_training_loaders(evidence: Evidence) -> Iterator[list[ObservedLoader]]:
    """Yield a loader that every rank trains on, as each of them has it."""
    ranks = loaders_by_rank(evidence)
    for number in sorted(set.intersection(*(set(rank) for rank in ranks))) if ranks else ():
        loaders = [rank[number] for rank in ranks]
        if all(loader.is_training for loader in loaders):
            yield loaders


def allows_uneven(evidence: Evidence) -> bool:
    """Whether the script uses torch's way to train on uneven inputs."""
    return any(_JOIN.search(source.text) for source in evidence.sources)


def recorded(*ranks: Sequence[tuple[int, Facts]], num_steps: tuple[int, ...] = ()) -> Evidence:
    """Return evidence of ranks that have these facts at these lines, in this order."""
    processes = []
    for rank, facts in enumerate(ranks):
        moments: list[Moment[Any]] = [
            Moment(
                facts=item,
                step=0,
                at_s=float(number),
                took_s=0.0,
                file="train.py",
                line=line,
                function="<module>",
            )
            for number, (line, item) in enumerate(facts)
        ]
        steps = num_steps[rank] if num_steps else 4
        processes.append(
            Process(
                pid=rank,
                argv=[],
                rank=rank,
                size=len(ranks),
                moments=moments,
                num_steps=steps,
                ended="finished",
            )
        )
    return Evidence(processes=processes)


def trained_loader(digests: list[list[int]]) -> list[tuple[int, Facts]]:
    """Return the facts of a loader that gives these samples, all of which are trained on."""
    number = 0
    made = LoaderMade(
        number,
        is_direct=True,
        dataset=1,
        is_iterable=False,
        is_ordered=False,
        is_random=True,
        num_workers=0,
        is_persistent=False,
        has_init=False,
        num_cores=2,
    )
    num = len(digests)
    used = LoaderUsed(number, "DataLoader", "TensorDataset", "RandomSampler", 2, 0, num)
    facts: list[tuple[int, Facts]] = [
        (3, ParallelMade("DistributedDataParallel", is_in_group=False)),
        (5, made),
        (6, used),
        (6, EpochBegan(number)),
        (6, LoaderOrder(number, None, None, 1, None)),
    ]
    for _ in digests:
        facts.append((6, BatchFetched(number, None)))
        facts.append((7, ForwardPass(0, True, True, False, None)))
        facts.append((8, BackwardPass("backward", None, None, 1.0)))
    seen = SamplesSeen(number, 0, num, sum(map(len, digests)), digests, 3, 4, True, [])
    return [*facts, (6, seen)]
