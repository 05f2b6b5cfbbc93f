"""Evidence for DIST18 unordered-load."""

from tests.rules.evidence.ranks import recorded
from truestep.rules import Evidence
from truestep.watch.evidence.facts.structure import FileLoaded, FileSaved
from truestep.watch.evidence.facts.surroundings import RankEnded


def _recorded(*, arrived: int) -> Evidence:
    """Return evidence of a rank that saves and one that loads, which enters a collective at that time."""
    saved = [(9, FileSaved("torch", "model.pt", None)), (12, RankEnded([("0", 1, 0)], 0, 2_000_000_000))]
    arrivals = [("0", 1, 0), ("0", 2, arrived)]
    loaded = [(11, FileLoaded("torch", "model.pt", None)), (12, RankEnded(arrivals, 0, 2_000_000_000))]
    return recorded(saved, loaded)


BUGGY = _recorded(arrived=1_500_000_000)
CLEAN = _recorded(arrived=500_000_000)
