"""The last position of padded sequences is read: it is zero for all but the longest.

## What it finds
Outputs of a recurrent layer, as `pad_packed_sequence` or a mask leaves them, whose last position is taken as
the last state (`out[:, -1]`), while the sequences of the batch have different lengths. The rule reads the
values: sequences that end in positions whose features are all zero, not all at the same position.

## Why it matters
A sequence that is shorter than the longest of its batch has ended before: its last position is padding. The
model gets zeros instead of its last state, and the result depends on the other sequences of the batch.

## How to fix
Use the hidden state that the recurrent layer returns (`hidden[-1]`), or choose each sequence's own last
position: `out[torch.arange(len(out)), lengths - 1]`.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.grouping import by_line
from truestep.watch.evidence.facts.passes import BackwardPass, PaddedEndRead

RULE = Meta(
    code="DATA17",
    severity="error",
    needs=(BackwardPass, PaddedEndRead),
    fix="Use the last hidden state of the layer, or each sequence's own last position.",
)
_LEAST_STEPS = 2


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find lines that read padding as the last state."""
    lines = by_line(evidence.of(PaddedEndRead))
    for moments in lines.values():
        if len({moment.step for moment in moments}) >= _LEAST_STEPS:
            facts = moments[0].facts
            yield Finding.at(
                moments[0],
                "the last position of padded sequences is read as the last state",
                count=len(moments),
                evidence=f"{facts.num_ended} of {facts.num_samples} sequences have ended before position "
                f"{facts.num_places}: their last state is "
                f"{'read as zeros' if facts.is_zero else 'computed from zeros after their end'}",
            )
