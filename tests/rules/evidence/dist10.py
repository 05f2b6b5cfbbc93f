"""Evidence for DIST10 repeated-draws."""

from tests.rules.evidence.ranks import recorded
from truestep.watch.evidence.facts.passes import ParallelMade
from truestep.watch.evidence.facts.surroundings import InputsDigested
from truestep.watch.evidence.kinds import Facts


def _rank(*digests: str) -> list[tuple[int, Facts]]:
    return [
        (3, ParallelMade("DistributedDataParallel", is_in_group=False)),
        *((7, InputsDigested(0, digest)) for digest in digests),
    ]


BUGGY = recorded(*[_rank("0a", "0b", "0c")] * 2)
CLEAN = recorded(_rank("0a", "0b", "0c"), _rank("1a", "1b", "1c"))
