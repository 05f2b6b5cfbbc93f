"""DDP waits for gradients of parameters that a rank did not use.

## What it finds
The error "Expected to have finished reduction in the prior iteration" of `DistributedDataParallel`, with the
names of the parameters and the modules that got no gradient. DDP itself gives numbers.

## Why it matters
DDP exchanges gradients once all parameters have one. If the loss does not depend on a parameter, on one rank
or on all, the exchange does not end. The other ranks wait, and the next forward pass raises.

## How to fix
Use the parameter in every step on every rank, freeze it with `requires_grad_(False)` before the model is
wrapped, or pass `find_unused_parameters=True` if different steps use different parts.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.watch import Moment
from truestep.watch.evidence.facts.surroundings import GradientsMissed

RULE = Meta(
    code="DIST13",
    severity="error",
    is_observed=lambda evidence: bool(_missed(evidence)),
    needs=(GradientsMissed,),
    is_lasting=True,
    fix="Use the parameters in every step, freeze them, or pass find_unused_parameters=True.",
)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Name what got no gradient, and on which ranks."""
    found = _missed(evidence)
    if not found:
        return
    first = found[min(found)]
    facts, place = first.facts, first.facts.place
    modules = {
        name.rpartition(".")[0] or facts.class_name for item in found.values() for name in item.facts.names
    }
    shown = [
        f"rank {rank}: {', '.join(item.facts.names[:3])} ({len(item.facts.names)} of {facts.num_parameters})"
        for rank, item in sorted(found.items())[:4]
    ]
    yield Finding(
        message=f"{', '.join(sorted(modules)[:3])} of {facts.class_name} got no gradient: DDP waits for it",
        file=place.file if place else first.file,
        line=place.line if place else first.line,
        step=first.step,
        evidence=f"parameters without a gradient: {'; '.join(shown)}",
    )


def _missed(evidence: Evidence) -> dict[int, Moment[GradientsMissed]]:
    found = {process.rank: process.of(GradientsMissed) for process in evidence.processes}
    return {rank: moments[0] for rank, moments in found.items() if moments}
