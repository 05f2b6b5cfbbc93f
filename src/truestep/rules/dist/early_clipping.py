"""Gradients are clipped before they are averaged over ranks.

## What it finds
`clip_grad_norm_` that sees other gradients on each rank, followed by an optimizer step that applies the same
gradients on all ranks: the exchange comes after the clipping. Use `--processes 2`.

## Why it matters
Each rank clips by the norm of its gradient, with a different factor. The average then has another direction
than the gradient of the whole batch. The limit holds for each part, not for the average, which is smaller.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.watch import Moment, Process
from truestep.watch.evidence.facts.surroundings import NormClipped, ReplicaDigested

RULE = Meta(
    code="DIST15",
    severity="warning",
    is_observed=lambda evidence: sum(bool(process.of(NormClipped)) for process in evidence.processes) > 1,
    needs=(NormClipped, ReplicaDigested),
    is_lasting=True,
    fix="Call clip_grad_norm_ after the gradients are averaged over ranks.",
)
_SAME = 1e-4
_LEAST = 2


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find clipping with different norms before steps with the same gradients."""
    found = []
    for clips in zip(*map(_clips, evidence.processes), strict=False):
        norms = [clip.facts.norm for clip, _ in clips]
        is_apart = max(norms) - min(norms) > _SAME * max(norms)
        applied = {step.facts.gradients for _, step in clips}
        if is_apart and len(applied) == 1 and None not in applied:
            found.append((clips[0][0], norms))
    if len(found) >= _LEAST:
        first, norms = found[0]
        shown = ", ".join(f"{norm:.4g} on rank {rank}" for rank, norm in enumerate(norms[:6]))
        yield Finding.at(
            first,
            "gradients are clipped on each rank before they are averaged",
            evidence=f"the norms are {shown}, and then all ranks apply the same gradients",
        )


def _clips(process: Process) -> list[tuple[Moment[NormClipped], Moment[ReplicaDigested]]]:
    """Return each step before which gradients were clipped, and the clipping."""
    found, since_s = [], float("-inf")
    for step in process.of(ReplicaDigested):
        clips = [clip for clip in process.of(NormClipped) if since_s < clip.at_s < step.at_s]
        if len(clips) == 1:  # of several, it is not known which belongs to this step
            found.append((clips[0], step))
        since_s = step.at_s
    return found
