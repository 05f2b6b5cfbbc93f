"""Evidence of the ranks of one job."""

from collections.abc import Sequence
from typing import Any

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
        has_init=False,
    )
    num = len(digests)
    used = LoaderUsed(number, "TensorDataset", 2, 0, num)
    facts: list[tuple[int, Facts]] = [
        (3, ParallelMade("DistributedDataParallel", is_in_group=False)),
        (5, made),
        (6, used),
        (6, EpochBegan(number)),
        (6, LoaderOrder(number, None, 1, None)),
    ]
    for _ in digests:
        facts.append((6, BatchFetched(number, None)))
        facts.append((7, ForwardPass(0, True, True, False, None)))
        facts.append((8, BackwardPass("backward")))
    seen = SamplesSeen(number, 0, num, sum(map(len, digests)), digests, 3, 4, [])
    return [*facts, (6, seen)]
