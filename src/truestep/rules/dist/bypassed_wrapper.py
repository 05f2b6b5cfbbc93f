"""The DDP wrapper is bypassed: gradients are not averaged.

## What it finds
A training step that calls the model inside a `DistributedDataParallel` wrapper directly, as `ddp.module(x)`,
and does not call the wrapper.

## Why it matters
DDP sets up the gradient exchange in its `forward`. Without it, each process trains only on its own data. The
replicas drift apart, and the checkpoint contains the weights of one process.

## How to fix
Call the wrapper: `ddp(x)`. Move anything else that training needs from the model into its `forward`.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.passes import ForwardPass, ParallelMade
from truestep.watch.evidence.facts.surroundings import WrapperBypassed

RULE = Meta(
    code="DIST01",
    severity="error",
    needs=(ParallelMade, ForwardPass, OptimizerStep),
    is_lasting=True,
    fix="Call the wrapper in training, not the module inside it.",
)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find training that goes past the wrapper."""
    for moment in evidence.of(WrapperBypassed):
        yield Finding.at(
            moment,
            f"{moment.facts.class_name} is called without its DDP wrapper: gradients are not averaged",
            evidence=f"step {moment.step + 1} used gradients from this call; the wrapper was not called",
        )
