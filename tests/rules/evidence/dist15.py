"""Evidence for DIST15 early-clipping."""

from tests.rules.evidence.ranks import recorded
from truestep.rules.dist.early_clipping import _LEAST
from truestep.watch.evidence.facts.surroundings import UNWRAPPED, NormClipped, ReplicaDigested
from truestep.watch.evidence.kinds import Facts


def _rank(norm: float) -> list[tuple[int, Facts]]:
    applied = ReplicaDigested(0, UNWRAPPED, {"weight": "0a"}, "ab", {})
    return [(8, NormClipped(norm)), (9, applied)] * _LEAST


BUGGY = recorded(_rank(1.0), _rank(2.0))
CLEAN = recorded(_rank(1.0), _rank(1.0))
