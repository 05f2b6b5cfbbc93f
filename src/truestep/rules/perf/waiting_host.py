"""The host waits for the GPU in every step.

## What it finds
Lines in the training loop that read a value from the GPU (`item`, `tolist`, `cpu`) in most steps, with the
time they waited.

## Why it matters
A GPU works through a queue that the host fills ahead of time. To read a value, the host waits until
everything before it is done. The queue runs empty, and then the GPU waits for the host.

## How to fix
Keep sums on the GPU and read them once every many steps, or copy with `non_blocking=True` and read later.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.perf._device_lines import costly_lines
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.surroundings import HostWaited

RULE = Meta(
    code="PERF05",
    severity="warning",
    needs=(HostWaited, OptimizerStep),
    fix="Keep the value on the GPU and read it only every N steps.",
)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find lines that wait in most steps."""
    for (waited, *_), steps, cost in costly_lines(evidence, evidence.of(HostWaited)):
        what = f"{waited.facts.how}() in {steps}"
        yield Finding.at(waited, "the host waits for the GPU in every step", evidence=what, cost=cost)
