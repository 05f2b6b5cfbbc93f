"""Evidence for DIST12 partial-load."""

from tests.rules.evidence.ranks import recorded
from truestep.watch.evidence.facts.structure import StateLoaded
from truestep.watch.evidence.facts.surroundings import ReplicaDigested
from truestep.watch.evidence.kinds import Facts


def _rank(weight: str, *, is_loaded: bool) -> list[tuple[int, Facts]]:
    loaded = [(7, StateLoaded("optimizer", "SGD", None, None, None))] if is_loaded else []
    return [*loaded, (9, ReplicaDigested(0, 0, {"weight": weight}, "ab", {}))]


BUGGY = recorded(_rank("0a", is_loaded=True), _rank("0b", is_loaded=False))
CLEAN = recorded(_rank("0a", is_loaded=True), _rank("0a", is_loaded=False))
