"""BatchNorm takes its statistics from very few values on each rank.

## What it finds
BatchNorm in train mode, in a model that several ranks train, whose mean and variance come from at most 4
values per channel on a rank. Use `--processes 2`.

## Why it matters
Ranks do not share BatchNorm's statistics. The global batch may be large, but each rank normalizes by its own
few samples. The statistics are mostly noise, and evaluation with running averages sees another function.

## How to fix
Convert the model with `nn.SyncBatchNorm.convert_sync_batchnorm(model)` (on GPUs), use GroupNorm or LayerNorm,
give each rank more samples, or freeze BatchNorm in eval mode.
"""

import math
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.dist._ranks import is_parallel
from truestep.rules.kit.grouping import grouped
from truestep.watch import Operation
from truestep.watch.evidence.facts.passes import ParallelMade
from truestep.watch.evidence.facts.surroundings import GroupJoined

RULE = Meta(
    code="DIST14",
    severity="warning",
    is_observed=lambda evidence: is_parallel(evidence) and bool(_norms(evidence)),
    needs=(ParallelMade, GroupJoined),
    is_lasting=True,
    fix="Use SyncBatchNorm or GroupNorm, or give each rank more samples.",
)
_MAX_VALUES = 4
_LEAST_STEPS = 2


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find layers whose statistics come from few values in every step that was looked at."""
    by_module = grouped(_norms(evidence), "module")
    small = {
        name: max(map(_num_values, operations))
        for name, operations in by_module.items()
        if len({item.step for item in operations}) >= _LEAST_STEPS
        and max(map(_num_values, operations)) <= _MAX_VALUES
    }
    if small:
        first = min(small, key=lambda name: by_module[name][0].index)
        yield Finding.at(
            by_module[first][0],
            f"BatchNorm normalizes by {small[first]} values per channel on each of "
            f"{len(evidence.processes)} ranks, and is not synchronized",
            evidence=f"{len(small)} of {len(by_module)} BatchNorm layers, the first ({first or 'the model'}) "
            f"with an input of shape {by_module[first][0].ins[0].shape}",
        )


def _norms(evidence: Evidence) -> list[Operation]:
    return [
        item
        for item in evidence.operations
        if "batch_norm" in item.name and "sync" not in item.name and item.phase == "forward"
        if not item.in_evaluation and item.ins and item.ins[0].has_grad
        # A first axis of one is InstanceNorm, which folds its samples into channels; or one sample.
        if len(item.ins[0].shape) > 1 and item.ins[0].shape[0] > 1
    ]


def _num_values(operation: Operation) -> int:
    """Return how many values each channel's mean is taken over."""
    shape = operation.ins[0].shape
    return math.prod(shape) // max(shape[1], 1)
