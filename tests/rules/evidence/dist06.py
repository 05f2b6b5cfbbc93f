"""Evidence for DIST06 differing-split."""

from tests.rules.evidence.ranks import recorded, trained_loader
from truestep.watch.evidence.facts.loading import BatchFetched, EpochBegan, LoaderOrder
from truestep.watch.evidence.facts.passes import ForwardPass
from truestep.watch.evidence.kinds import Facts


def _rank(trained: list[int], scored: list[int]) -> list[tuple[int, Facts]]:
    facts = [item for item in trained_loader([[1, 2], [3, 4]]) if not isinstance(item[1], LoaderOrder)]
    evaluated: list[tuple[int, Facts]] = [(12, EpochBegan(1))]
    for _ in range(3):
        evaluated += [(12, BatchFetched(1, None)), (13, ForwardPass(0, False, False, False, None))]
    orders: list[tuple[int, Facts]] = [
        (6, LoaderOrder(0, None, None, 1, trained)),
        (12, LoaderOrder(1, None, None, 1, scored)),
    ]
    return [*facts, *evaluated, *orders]


BUGGY = recorded(_rank([0, 1, 2, 3], [4, 5]), _rank([2, 3, 4, 5], [0, 1]))
CLEAN = recorded(*[_rank([0, 1, 2, 3], [4, 5])] * 2)
