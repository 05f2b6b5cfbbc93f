"""Evidence of jobs of two ranks: with the mistake of a rule, and of what looks similar."""

from tests.rules.evidence.ranks import recorded, trained_loader
from truestep.rules import Evidence
from truestep.rules.dist.early_clipping import _LEAST
from truestep.rules.dist.local_statistics import _LEAST_STEPS
from truestep.watch.evidence.facts.loading import BatchFetched, EpochBegan, LoaderOrder
from truestep.watch.evidence.facts.optimizing import MetricGiven
from truestep.watch.evidence.facts.passes import BackwardPass, ClassesScored, ForwardPass, ParallelMade
from truestep.watch.evidence.facts.structure import FileLoaded, FileSaved, StateLoaded
from truestep.watch.evidence.facts.surroundings import (
    UNWRAPPED,
    GradientsMissed,
    InputsDigested,
    ModelSharded,
    NormClipped,
    RankEnded,
    ReplicaDigested,
    ShardScaled,
)
from truestep.watch.evidence.kinds import Facts
from truestep.watch.evidence.operation import PHASES, In, Row, TableReader

Rank = list[tuple[int, Facts]]
"""Lines and what happened at them."""
WRAPPED = (3, ParallelMade("DistributedDataParallel", is_in_group=False))


def _split(trained: list[int], scored: list[int]) -> Rank:
    facts = [item for item in trained_loader([[1, 2], [3, 4]]) if not isinstance(item[1], LoaderOrder)]
    evaluated: Rank = [(12, EpochBegan(1))]
    for _ in range(3):
        evaluated += [(12, BatchFetched(1, None)), (13, ForwardPass(0, False, False, False, None))]
    orders: Rank = [
        (6, LoaderOrder(0, None, None, 1, trained)),
        (12, LoaderOrder(1, None, None, 1, scored)),
    ]
    return [*facts, *evaluated, *orders]


def _given(*digests: str) -> Rank:
    return [WRAPPED, *((7, InputsDigested(0, digest)) for digest in digests)]


def _digest(weight: str, wrapper: int = 0) -> tuple[int, Facts]:
    return 9, ReplicaDigested(0, wrapper, {"weight": weight}, "ab", {})


def _loaded(weight: str, *, is_loaded: bool) -> Rank:
    loaded: Rank = [(7, StateLoaded("optimizer", "SGD", None, None, None))] if is_loaded else []
    return [*loaded, _digest(weight)]


def _normalized(*shape: int) -> Evidence:
    """Return evidence of two ranks whose model has a BatchNorm that gets this."""
    evidence = recorded(*[[WRAPPED]] * 2)
    table = TableReader(texts=["", "aten.native_batch_norm.default", "norm"], places=[("train.py", 9, "")])
    ins, forward = [In("", None, shape, has_grad=True)], PHASES.index("forward")
    evidence.first.operations = [
        table.operation(
            Row(index=step, thread=0, step=step, name=1, site=0, outer=0, phase=forward, module=2, ins=ins)
        )
        for step in range(_LEAST_STEPS)
    ]
    return evidence


def _clipped(norm: float) -> Rank:
    return [(8, NormClipped(norm)), _digest("0a", UNWRAPPED)] * _LEAST


def _scored(num_scored: int) -> Rank:
    scored = ClassesScored(0, 9, "mean", -100, False, num_scored, 2.0, [], None, None)
    passes: Rank = [(7, scored), (8, BackwardPass("backward", None, None, 2.0))] * 3
    return [(3, ParallelMade("fully_shard", is_in_group=False)), *passes]


def _exchanged(*, arrived: int) -> Evidence:
    """Return evidence of a rank that saves and one that loads, which enters a collective at that time."""
    saved: Rank = [
        (9, FileSaved("torch", "model.pt", None)),
        (12, RankEnded([("0", 1, 0)], 0, 2_000_000_000)),
    ]
    arrivals = [("0", 1, 0), ("0", 2, arrived)]
    loaded: Rank = [
        (11, FileLoaded("torch", "model.pt", None)),
        (12, RankEnded(arrivals, 0, 2_000_000_000)),
    ]
    return recorded(saved, loaded)


def _saved(path: str) -> Rank:
    return [(9, FileSaved("torch", path, None))]


def _sharded(weight: str) -> Rank:
    return [(9, ModelSharded("Net", {"weight": weight}))]


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
    "DIST06": (
        recorded(_split([0, 1, 2, 3], [4, 5]), _split([2, 3, 4, 5], [0, 1])),
        recorded(*[_split([0, 1, 2, 3], [4, 5])] * 2),
    ),
    "DIST07": (
        recorded(_saved("model.pt"), _saved("model.pt")),
        recorded(_saved("model.pt"), _saved("model-1.pt")),
    ),
    "DIST08": (
        recorded([(9, ShardScaled(0, 0.5))], [(9, ShardScaled(0, 0.25))]),
        recorded([(9, ShardScaled(0, 0.5))], [(9, ShardScaled(0, 0.5))]),
    ),
    "DIST09": (recorded(_sharded("0a"), _sharded("0b")), recorded(_sharded("0a"), _sharded("0a"))),
    "DIST10": (
        recorded(*[_given("0a", "0b", "0c")] * 2),
        recorded(_given("0a", "0b", "0c"), _given("1a", "1b", "1c")),
    ),
    "DIST11": (
        recorded([WRAPPED, (9, MetricGiven(0, "min", 0.5))], [WRAPPED, (9, MetricGiven(0, "min", 0.25))]),
        recorded([WRAPPED, (9, MetricGiven(0, "min", 0.5))], [WRAPPED, (9, MetricGiven(0, "min", 0.5))]),
    ),
    "DIST12": (
        recorded(_loaded("0a", is_loaded=True), _loaded("0b", is_loaded=False)),
        recorded(_loaded("0a", is_loaded=True), _loaded("0a", is_loaded=False)),
    ),
    "DIST13": (
        recorded([(9, GradientsMissed("Net", ["head.weight"], 4, None))], []),
        recorded([], []),
    ),
    "DIST14": (_normalized(2, 8), _normalized(2, 8, 4, 4)),
    "DIST15": (recorded(_clipped(1.0), _clipped(2.0)), recorded(_clipped(1.0), _clipped(1.0))),
    "DIST16": (recorded(_scored(40), _scored(8)), recorded(_scored(40), _scored(36))),
    "DIST18": (_exchanged(arrived=1_500_000_000), _exchanged(arrived=500_000_000)),
}
