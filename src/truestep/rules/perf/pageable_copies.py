"""Batches are copied to the GPU from pageable memory, or created on the host first.

## What it finds
Tensors that are copied from host to GPU in most steps from memory that is not pinned, with the time it took.

## Why it matters
The GPU can fetch data from pinned memory while it computes. From pageable memory the driver copies twice and
the host waits. A tensor that is created on the host only to be moved pays for both.

## How to fix
Pass `pin_memory=True` to the loader and `non_blocking=True` to `.to()`. Create new tensors on the device with
`device=`.
"""

from collections.abc import Iterator
from typing import Any

from truestep.rules import Evidence, Finding, Meta
from truestep.watch import Moment, Process
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.surroundings import CopiedToDevice

RULE = Meta(
    code="PERF06",
    severity="warning",
    needs=(CopiedToDevice, OptimizerStep),
    fix="Use pin_memory=True and .to(device, non_blocking=True); create new tensors with device=.",
    is_preview=True,
)
_LEAST_STEPS, _LEAST_SHARE, _LEAST_OF_STEPS = 8, 0.03, 0.5


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find lines that copy in most steps."""
    steps = evidence.of(OptimizerStep)
    passed_s = steps[-1].at_s - steps[0].at_s if len(steps) >= _LEAST_STEPS else 0.0
    by_line: dict[tuple[str | None, int | None], list[Moment[Any]]] = {}
    for moment in evidence.of(CopiedToDevice):
        if steps[0].at_s <= moment.at_s <= steps[-1].at_s and not moment.facts.is_pinned:
            by_line.setdefault((moment.file, moment.line), []).append(moment)
    for moments in by_line.values():
        num_steps = len({moment.step for moment in moments})
        took_s = sum(moment.took_s for moment in moments)
        if passed_s and num_steps >= _LEAST_OF_STEPS * len(steps) and took_s >= _LEAST_SHARE * passed_s:
            yield Finding.at(
                moments[0],
                "tensors are copied to the GPU from memory that is not pinned",
                evidence=f"{len(moments)} copies in {num_steps} of {len(steps)} steps",
                cost=f"{took_s:.2f} s, {took_s / passed_s:.0%} of training time",
            )


def _recorded(*, is_pinned: bool) -> Evidence:
    """A loop of 16 steps of 10 ms with a copy in each."""
    moments: list[Moment[Any]] = []
    for step in range(16):
        common: dict[str, Any] = {"step": step, "file": "train.py", "function": "main"}
        copied = CopiedToDevice("to", is_pinned=is_pinned)
        moments.append(Moment(facts=copied, at_s=step / 100 + 0.001, took_s=0.002, line=5, **common))
        made = OptimizerStep(0, has_closure=False, counts=True, rates=None)
        moments.append(Moment(facts=made, at_s=step / 100 + 0.009, took_s=0.001, line=7, **common))
    return Evidence(processes=[Process(pid=1, argv=[], num_steps=16, moments=moments)])


BUGGY = _recorded(is_pinned=False)
CLEAN = _recorded(is_pinned=True)
