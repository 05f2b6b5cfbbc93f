"""Evidence for DIST16 uneven-mean."""

from tests.rules.evidence.ranks import recorded
from truestep.watch.evidence.facts.passes import BackwardPass, ClassesScored, ParallelMade
from truestep.watch.evidence.kinds import Facts


def _rank(num_scored: int) -> list[tuple[int, Facts]]:
    scored = ClassesScored(0, 9, "mean", -100, False, num_scored, 2.0, [], None, None)
    facts: list[tuple[int, Facts]] = [(3, ParallelMade("fully_shard", is_in_group=False))]
    return [*facts, *[(7, scored), (8, BackwardPass("backward", None, None, 2.0))] * 3]


BUGGY = recorded(_rank(40), _rank(8))
CLEAN = recorded(_rank(40), _rank(36))
