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

from truestep.rules import Evidence, Finding, Meta
from truestep.watch import Moment
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
