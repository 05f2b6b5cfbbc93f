"""`DataParallel` is used.

## What it finds
A model wrapped in `torch.nn.DataParallel`.

## Why it matters
One process runs one Python thread per GPU, and the threads share an interpreter. In every step the model is
copied to all GPUs, inputs are scattered and outputs gathered on the first one, which also needs the most
memory. On one device it does nothing. `DistributedDataParallel` copies nothing in a step and overlaps
communication with the backward pass.

## How to fix
Start one process per GPU with `torchrun` and wrap the model in `DistributedDataParallel`. On one device, use
the model without a wrapper.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.watch.evidence.facts.passes import ForwardPass, ModelUsed, ParallelMade

RULE = Meta(
    code="PERF09",
    severity="warning",
    needs=(ParallelMade,),
    fix="Use torchrun and DistributedDataParallel with one process per GPU; on one device, no wrapper.",
    is_preview=True,
)


def is_observed(evidence: Evidence) -> bool:
    """Whether a model of this kind was called."""
    return any(moment.facts.class_name == "DataParallel" for moment in evidence.of(ModelUsed))


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find models that were wrapped and called."""
    models = [item.facts.model for item in evidence.of(ModelUsed) if item.facts.class_name == "DataParallel"]
    passes = [item.took_s for item in evidence.of(ForwardPass) if item.facts.model in models]
    for moment in evidence.of(ParallelMade):
        if moment.facts.what == "DataParallel" and passes:
            yield Finding.at(
                moment,
                "the model is wrapped in DataParallel",
                evidence=f"{len(passes)} forward passes went through it",
                cost=f"{sum(passes):.2f} s in those forward passes, copying and gathering included",
            )
