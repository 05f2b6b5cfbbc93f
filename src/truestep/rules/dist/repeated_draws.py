"""Every rank gives the model the same batches, without a loader that repeats them.

## What it finds
A model in `DistributedDataParallel` or `fully_shard` that gets the same input on all ranks in each step,
while the input changes from step to step. The usual cause is one seed on all ranks, and batches that are
drawn with `torch.randn` or `torch.randint`. Use `--processes 2`.

## Why it matters
All ranks compute the same gradient, so N processes do the work of one. Noise that should differ between
ranks, like the input of a generator, is repeated.

## How to fix
Seed all ranks alike while the model is built, then differently: `torch.manual_seed(seed + rank)`. Or take
every rank's own part of the data: `x[rank::size]`.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.dist._ranks import all_have
from truestep.rules.kit.grouping import grouped
from truestep.watch import Moment
from truestep.watch.evidence.facts.passes import ParallelMade
from truestep.watch.evidence.facts.surroundings import InputsDigested

RULE = Meta(
    code="DIST10",
    severity="warning",
    is_observed=lambda evidence: all_have(evidence, InputsDigested),
    needs=(ParallelMade, InputsDigested),
    fix="Seed each rank differently after the model is built: torch.manual_seed(seed + rank).",
    caused_by=("DIST04",),
)
_LEAST = 3


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find models whose inputs are the same on all ranks."""
    ranks = [_inputs(process.of(InputsDigested)) for process in evidence.processes]
    for model in sorted(set.intersection(*(set(rank) for rank in ranks))):
        moments = [rank[model] for rank in ranks]
        num = min(map(len, moments))
        digests = {tuple(moment.facts.digest for moment in rank[:num]) for rank in moments}
        if len(digests) == 1 and len(set(digests.pop())) >= _LEAST:
            yield Finding.at(
                moments[0][0],
                "every rank gives the model the same inputs: the work is repeated, not shared",
                evidence=f"the first {num} inputs are bit-for-bit identical on all {len(ranks)} ranks",
                cost=f"{len(ranks)} processes do the work of one",
            )


def _inputs(moments: list[Moment[InputsDigested]]) -> dict[int, list[Moment[InputsDigested]]]:
    return grouped(moments, "facts.model")
