"""Evidence of jobs of two ranks: with the mistake of a rule, and of what looks similar."""

from tests.rules.evidence.ranks import recorded, trained_loader
from truestep.rules import Evidence
from truestep.watch.evidence.facts.passes import ParallelMade
from truestep.watch.evidence.facts.surroundings import (
    ReplicaDigested,
)
from truestep.watch.evidence.kinds import Facts

WRAPPED = (3, ParallelMade("DistributedDataParallel", is_in_group=False))


def _digest(weight: str, wrapper: int = 0) -> tuple[int, Facts]:
    return 9, ReplicaDigested(0, wrapper, {"weight": weight}, "ab", {})


JOBS: dict[str, tuple[Evidence, Evidence]] = {
    "DIST02": (recorded([_digest("0a")], [_digest("0b")]), recorded([_digest("0a")], [_digest("0a")])),
    "DIST04": (
        recorded(*[trained_loader([[1, 2], [3, 4], [5, 6]])] * 2),
        recorded(trained_loader([[1, 2], [3, 4]]), trained_loader([[5, 6], [7, 8]])),
    ),
    "DIST05": (
        recorded(
            trained_loader([[1, 2], [3, 4], [5, 6]]), trained_loader([[7, 8], [9, 10]]), num_steps=(3, 2)
        ),
        recorded(trained_loader([[1, 2], [3, 4]]), trained_loader([[7, 8], [9, 10]]), num_steps=(2, 2)),
    ),
}
