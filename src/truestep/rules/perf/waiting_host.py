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
from typing import Any

from truestep.rules import Evidence, Finding, Meta
from truestep.watch import Moment, Process
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.surroundings import HostWaited

RULE = Meta(
    code="PERF05",
    severity="warning",
    needs=(HostWaited, OptimizerStep),
    fix="Keep the value on the GPU and read it only every N steps.",
    is_preview=True,
)
_LEAST_STEPS, _LEAST_SHARE, _LEAST_OF_STEPS = 8, 0.03, 0.5


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find lines that wait in most steps."""
    steps = evidence.of(OptimizerStep)
    passed_s = steps[-1].at_s - steps[0].at_s if len(steps) >= _LEAST_STEPS else 0.0
    by_line: dict[tuple[str | None, int | None], list[Moment[Any]]] = {}
    for moment in evidence.of(HostWaited):
        if steps[0].at_s <= moment.at_s <= steps[-1].at_s:
            by_line.setdefault((moment.file, moment.line), []).append(moment)
    for moments in by_line.values():
        num_steps = len({moment.step for moment in moments})
        waited_s = sum(moment.took_s for moment in moments)
        if passed_s and num_steps >= _LEAST_OF_STEPS * len(steps) and waited_s >= _LEAST_SHARE * passed_s:
            yield Finding.at(
                moments[0],
                "the host waits for the GPU in every step",
                evidence=f"{moments[0].facts.how}() in {num_steps} of {len(steps)} steps",
                cost=f"{waited_s:.2f} s, {waited_s / passed_s:.0%} of training time",
            )


def _recorded(*, every: int) -> Evidence:
    """A loop of 32 steps of 10 ms that reads its loss in each `every`-th."""
    moments: list[Moment[Any]] = []
    for step in range(32):
        common: dict[str, Any] = {"step": step, "file": "train.py", "function": "main"}
        if step % every == 0:
            waited = HostWaited("item")
            moments.append(Moment(facts=waited, at_s=step / 100 + 0.005, took_s=0.004, line=8, **common))
        made = OptimizerStep(0, has_closure=False, counts=True, rates=None)
        moments.append(Moment(facts=made, at_s=step / 100 + 0.009, took_s=0.001, line=7, **common))
    return Evidence(processes=[Process(pid=1, argv=[], num_steps=32, moments=moments)])


BUGGY = _recorded(every=1)
CLEAN = _recorded(every=16)
