"""Evidence for DIST03 deadlock."""

from truestep.rules import Evidence
from truestep.watch.evidence.kinds import Place
from truestep.watch.evidence.stalls import Collective, Standing


def _recorded(*names: str) -> Evidence:
    """Return evidence of ranks that wait in these collectives."""
    standings = [
        Standing(
            rank=rank,
            size=len(names),
            pid=rank,
            doing="waiting",
            since_s=5.0,
            stack=(Place("train.py", 9 + rank, "<module>"),),
            pending=Collective(group="0", number=3, name=name, members=tuple(range(len(names)))),
        )
        for rank, name in enumerate(names)
    ]
    return Evidence(standings=standings)


BUGGY = _recorded("all_reduce", "barrier")
CLEAN = _recorded("all_reduce", "all_reduce")
