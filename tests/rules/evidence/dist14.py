"""Evidence for DIST14 local-statistics."""

from tests.rules.evidence.ranks import recorded
from truestep.rules import Evidence
from truestep.rules.dist.local_statistics import _LEAST_STEPS
from truestep.watch.evidence.facts.passes import ParallelMade
from truestep.watch.evidence.operation import PHASES, In, Row, TableReader


def _recorded(*shape: int) -> Evidence:
    """Return evidence of two ranks whose model has a layer that gets this."""
    evidence = recorded(*[[(3, ParallelMade("DistributedDataParallel", is_in_group=False))]] * 2)
    table = TableReader(texts=["", "aten.native_batch_norm.default", "norm"], places=[("train.py", 9, "")])
    evidence.first.operations = [
        table.operation(
            Row(
                index=step,
                thread=0,
                step=step,
                name=1,
                site=0,
                outer=0,
                phase=PHASES.index("forward"),
                module=2,
                ins=[In("", None, shape, has_grad=True)],
            )
        )
        for step in range(_LEAST_STEPS)
    ]
    return evidence


BUGGY = _recorded(2, 8)
CLEAN = _recorded(2, 8, 4, 4)
