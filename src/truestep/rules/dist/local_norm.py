"""Gradients of a sharded model are scaled differently on each rank.

## What it finds
A model that is sharded with `fully_shard` whose gradients are multiplied by another factor on each rank
between the backward pass and the step. Clipping by hand with the norm of `to_local()` does that. Use
`--processes 2`.

## Why it matters
Each rank holds a part of every gradient. The norm of that part is not the norm of the gradient, so each rank
clips with another factor. The step then has another direction, and the limit is not the one that you set.

## How to fix
Use `torch.nn.utils.clip_grad_norm_(model.parameters(), limit)`, which sums over all ranks, or add the squared
norms of the shards with `dist.all_reduce` before the square root.
"""

import re
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.watch import Moment
from truestep.watch.evidence.facts.surroundings import ShardScaled

RULE = Meta(
    code="DIST08",
    severity="error",
    is_observed=lambda evidence: sum(bool(process.of(ShardScaled)) for process in evidence.processes) > 1,
    needs=(ShardScaled,),
    fix="Clip with torch.nn.utils.clip_grad_norm_, which takes the norm over all ranks.",
)
_SAME = 1e-3
_LOCAL = re.compile(r"to_local\(|_local_tensor")


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find the first step in which factors differ."""
    ranks = [
        {(moment.step, moment.facts.optimizer): moment for moment in process.of(ShardScaled)}
        for process in evidence.processes
    ]
    for key in sorted(set.intersection(*(set(rank) for rank in ranks))) if ranks else ():
        moments = [rank[key] for rank in ranks]
        factors = [moment.facts.factor for moment in moments]
        if max(factors) - min(factors) > _SAME * max(map(abs, factors)):
            shown = ", ".join(f"{factor:.3g} on rank {rank}" for rank, factor in enumerate(factors[:6]))
            yield Finding.at(
                moments[0],
                "each rank scales its shard of the gradients by another factor",
                line=_line(evidence, moments[0]) or moments[0].line,
                evidence=f"between the backward pass and the step the gradients were multiplied by {shown}",
            )
            return


def _line(evidence: Evidence, step: Moment[ShardScaled]) -> int | None:
    """Return the last line before the step that takes a shard, if there is one."""
    source = evidence.source(step.file)
    lines = source.lines[: step.line or 0] if source is not None else []
    found = [number for number, text in enumerate(lines, start=1) if _LOCAL.search(text.partition("#")[0])]
    return found[-1] if found else None
