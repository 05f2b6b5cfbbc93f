"""Memory has run out: what held it, and which batch would have fitted.

## What it finds
A script that ends because an allocation failed, on the device or in the host's memory: how much parameters,
gradients, optimizer state, activations and batches held, and which modules and lines the activations belong
to.

## Why it matters
The error names the allocation that failed, which is rarely the one that takes the memory.

## How to fix
Use a smaller batch. If the activations of a few modules take most of the memory, recompute them in the
backward pass (`torch.utils.checkpoint`). If parameters and optimizer state do, no batch size helps: use lower
precision, an optimizer with less state, or shard the model.
"""

from collections.abc import Iterator
from typing import Any

from truestep.base.memory import in_bytes, largest_batch
from truestep.rules import Evidence, Finding, Meta
from truestep.watch import Moment
from truestep.watch.evidence.facts.course import Holder, MemoryExhausted, MemoryExpected

RULE = Meta(
    code="LONG06",
    severity="error",
    is_observed=lambda evidence: bool(exhausted(evidence)),
    caused_by=("LOOP13", "LOOP15"),
    fix="Use a smaller batch, or recompute activations in the backward pass (torch.utils.checkpoint).",
)
_NUM_SHOWN = 4
_MARGIN = 50
"""By this part a batch is told smaller than worked out: allocators round."""
_IN = {
    "forward": " in the forward pass",
    "backward": " in the backward pass",
    "optimizer": " in the optimizer step",
    "data": " while a batch was loaded",
    "worker": " in a loader worker",
}


def exhausted(evidence: Evidence) -> list[Moment[MemoryExhausted]]:
    """Return the ends of processes whose memory has run out."""
    return [moment for process in evidence.processes for moment in process.of(MemoryExhausted)]


def check(evidence: Evidence) -> Iterator[Finding]:
    """Report what held memory."""
    expected = expected_memory(evidence)
    for moment in exhausted(evidence):
        facts = moment.facts
        asked = facts.requested_bytes
        words = f"memory ran out{_IN.get(facts.phase, '')}"
        yield Finding(
            message=words if asked is None else f"{words}: {in_bytes(asked)} could not be allocated",
            file=facts.place.file if facts.place else None,
            line=facts.place.line if facts.place else None,
            step=moment.step + 1,
            evidence=_evidence(facts, expected) if facts.phase != "worker" else facts.error,
            fix=_fix(facts),
        )


def expected_memory(evidence: Evidence) -> MemoryExpected | None:
    """Return what was expected before the first steps, of the process that needs most."""
    found = (process.of(MemoryExpected) for process in evidence.processes)
    last = [moments[-1].facts for moments in found if moments]
    return max(last, key=lambda facts: facts.peak_bytes, default=None)


def fitting_batch(facts: MemoryExhausted) -> int | None:
    """Return the largest batch that would have fitted; None if that is not known, 0 if none would have."""
    if facts.free_bytes is None or not facts.per_sample_bytes or not facts.batch_size:
        return None
    limit = sum(facts.held.values()) + facts.free_bytes - facts.held.get("other", 0)
    if facts.held["parameters"] + facts.held["optimizer state"] + facts.gradients_bytes > limit:
        return 0
    size = largest_batch(limit, fixed_bytes=facts.fixed_bytes, per_sample_bytes=facts.per_sample_bytes)
    size -= 0 if facts.is_partial else size // _MARGIN
    return max(0, size) if size < facts.batch_size else None


def plain_account(facts: MemoryExhausted) -> dict[str, Any]:
    """Return the account as the command's JSON has it."""
    fields = facts._asdict()
    place = fields.pop("place")
    return {
        **fields,
        "file": place.file if place else None,
        "line": place.line if place else None,
        "holders": [holder._asdict() for holder in facts.holders],
        "fitting_batch_size": fitting_batch(facts),
    }


def _evidence(facts: MemoryExhausted, expected: MemoryExpected | None) -> str:
    held = [f"{name} {in_bytes(size)}" for name, size in facts.held.items() if size]
    total = in_bytes(sum(facts.held.values()))
    words = f"{facts.device} held {total}: {', '.join(held)}"
    if facts.device == "cpu":
        words = f"training held {', '.join(held)}{', and activations' * bool(facts.holders_step)}"
    if facts.free_bytes is not None:
        words += f"; {in_bytes(facts.free_bytes)} were free"
    if expected is not None and expected.device == facts.device:
        words += f". Before the first step, {in_bytes(expected.peak_bytes)} were expected"
    shown = [_words(holder) for holder in facts.holders[:_NUM_SHOWN] if holder.category == "activations"]
    if shown:
        step = f" (as in step {facts.holders_step})" if facts.holders_step else ""
        words += f". Largest activations{step}: {', '.join(shown)}"
    return words


def _words(holder: Holder) -> str:
    name = (holder.file or "").replace("\\", "/").rpartition("/")[2]
    module = f" in module {holder.module}" if holder.module else ""
    return f"{in_bytes(holder.num_bytes)}{module}{f' at {name}:{holder.line}' if name else ''}"


def _fix(facts: MemoryExhausted) -> str | None:
    if facts.phase == "worker":
        return "Use fewer workers, a smaller prefetch_factor or smaller batches."
    size = fitting_batch(facts)
    if size is None:
        return None
    if not size:
        return (
            "No batch fits beside parameters, gradients and optimizer state: use lower precision, an "
            "optimizer with less state, or shard the model."
        )
    bound = "at most " if facts.is_partial else "about "
    return f"Use a smaller batch: {bound}{size} would have fitted instead of {facts.batch_size}."
