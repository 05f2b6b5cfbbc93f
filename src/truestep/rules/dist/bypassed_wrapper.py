"""The DDP wrapper is bypassed: gradients are not averaged.

## What it finds
A step of training in which the model inside of a `DistributedDataParallel` wrapper was called directly, as
`ddp.module(x)`, and the wrapper itself was not.

## Why it matters
DDP prepares the exchange of gradients in its own `forward`. Without that, each process trains on its own data
alone: the replicas drift apart, and what is saved in the end is that of one process.

## How to fix
Call the wrapper: `ddp(x)`. What else training needs of the model belongs into its `forward`.
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
    fix="Call the wrapper in training, not the module inside of it.",
)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find training that goes past the wrapper."""
    for moment in evidence.of(WrapperBypassed):
        yield Finding.at(
            moment,
            f"{moment.facts.class_name} is called past its DDP wrapper: gradients are not averaged",
            evidence=f"step {moment.step + 1} used gradients of this call, the wrapper was not called",
        )


_SCRIPT = """
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.manual_seed(0)
with tempfile.TemporaryDirectory() as folder:
    store = "file://" + os.path.join(folder, "store")
    dist.init_process_group("gloo", init_method=store, world_size=1, rank=0)
    model = nn.Linear(4, 1)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(4):
        x = torch.randn(8, 4)
        CALL
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            parallel.module(x)
    dist.destroy_process_group()
"""
BUGGY = _SCRIPT.replace(
    "CALL", "loss = (model(x) - x.sum(1, keepdim=True)).square().mean()  # expect: DIST01"
)
CLEAN = _SCRIPT.replace("CALL", "loss = (parallel(x) - x.sum(1, keepdim=True)).square().mean()")
