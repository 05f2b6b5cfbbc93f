"""cuDNN searches for the fastest algorithm at every new shape.

## What it finds
`torch.backends.cudnn.benchmark = True` with inputs of many shapes, where forward passes with a new shape take
much longer than those with a known one.

## Why it matters
With benchmark on, cuDNN tries all its algorithms for each new shape. With one shape that pays off; with many
it costs time again and again.

## How to fix
Pad or crop inputs to a few shapes, or keep `cudnn.benchmark` off.
"""

from collections.abc import Iterator
from statistics import median
from typing import Any

from truestep.rules import Evidence, Finding, Meta
from truestep.watch import Moment, Process
from truestep.watch.evidence.facts.passes import ForwardPass
from truestep.watch.evidence.facts.surroundings import DeviceMeasured

RULE = Meta(
    code="PERF08",
    severity="warning",
    needs=(DeviceMeasured, ForwardPass),
    fix="Keep torch.backends.cudnn.benchmark off, or pad inputs to a few shapes.",
    is_preview=True,
)
_LEAST_SHAPES, _LEAST_SLOWER = 6, 2.0


def check(evidence: Evidence) -> Iterator[Finding]:
    """Compare forward passes with new shapes and with known ones."""
    if not evidence.of(DeviceMeasured)[-1].facts.is_benchmark_on:
        return
    met: set[str] = set()
    new: list[Moment[ForwardPass]] = []
    known: list[Moment[ForwardPass]] = []
    for moment in evidence.of(ForwardPass):
        key = f"{moment.facts.model} {moment.facts.tensors}"
        (known if key in met else new).append(moment)
        met.add(key)
    new = new[1:]  # the first pass is slow for many reasons
    if len(new) < _LEAST_SHAPES or len(known) < _LEAST_SHAPES:
        return
    usual_s = median(moment.took_s for moment in known)
    slower = median(moment.took_s for moment in new) / max(usual_s, 1e-9)
    if slower >= _LEAST_SLOWER:
        lost_s = sum(moment.took_s - usual_s for moment in new)
        yield Finding.at(
            new[0],
            "cuDNN tries all algorithms for every new input shape",
            evidence=f"{len(new) + 1} shapes; a pass with a new shape takes {slower:.1f} times as long",
            cost=f"{lost_s:.2f} s in {len(new)} forward passes",
        )


def _recorded(*, num_shapes: int) -> Evidence:
    """32 forward passes; one with a new shape takes ten times as long."""
    common: dict[str, Any] = {"file": "train.py", "function": "main", "line": 6}
    moments: list[Moment[Any]] = []
    for step in range(32):
        shape = [[[8, 3, 32, 32 + step % num_shapes], "torch.float32"]]
        took_s = 0.1 if step < num_shapes else 0.01
        called = ForwardPass(0, is_training=True, is_grad_enabled=True, is_inference=False, tensors=shape)
        moments.append(Moment(facts=called, step=step, at_s=float(step), took_s=took_s, **common))
    device = DeviceMeasured(
        "GPU", is_tf32_allowed=True, is_benchmark_on=True, float32_s=0.004, bfloat16_s=0.001
    )
    moments.append(Moment(facts=device, step=32, at_s=33.0, took_s=0.0, **common))
    return Evidence(processes=[Process(pid=1, argv=[], num_steps=32, moments=moments)])


BUGGY = _recorded(num_shapes=12)
CLEAN = _recorded(num_shapes=1)
