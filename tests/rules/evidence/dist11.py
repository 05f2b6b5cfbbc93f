"""Evidence for DIST11 differing-metric."""

from tests.rules.evidence.ranks import recorded
from truestep.watch.evidence.facts.optimizing import MetricGiven
from truestep.watch.evidence.facts.passes import ParallelMade
from truestep.watch.evidence.kinds import Facts


def _rank(value: float) -> list[tuple[int, Facts]]:
    return [
        (3, ParallelMade("DistributedDataParallel", is_in_group=False)),
        (9, MetricGiven(0, "min", value)),
    ]


BUGGY = recorded(_rank(0.5), _rank(0.25))
CLEAN = recorded(_rank(0.5), _rank(0.5))
