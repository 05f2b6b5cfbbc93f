"""Batches are copied to the GPU from pageable memory, or created on the host first.

## What it finds
Tensors that are copied from host to GPU in most steps from memory that is not pinned, with the time it took.

## Why it matters
The GPU can fetch data from pinned memory while it computes. From pageable memory the driver copies twice and
the host waits. A tensor that is created on the host only to be moved pays for both.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.perf._device_lines import costly_lines
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.surroundings import CopiedToDevice

RULE = Meta(
    code="PERF06",
    severity="warning",
    needs=(CopiedToDevice, OptimizerStep),
    fix="Use pin_memory=True and .to(device, non_blocking=True); create new tensors with device=.",
)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find lines that copy in most steps."""
    copies = [moment for moment in evidence.of(CopiedToDevice) if not moment.facts.is_pinned]
    for moments, steps, cost in costly_lines(evidence, copies):
        message = "tensors are copied to the GPU from memory that is not pinned"
        yield Finding.at(moments[0], message, evidence=f"{len(moments)} copies in {steps}", cost=cost)
