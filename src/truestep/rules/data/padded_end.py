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
from truestep.watch import Moment
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
    lines: dict[tuple[str | None, int | None], list[Moment[PaddedEndRead]]] = {}
    for moment in evidence.of(PaddedEndRead):
        lines.setdefault((moment.file, moment.line), []).append(moment)
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


BUGGY = """
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        states, hidden = self.rnn(packed)
        states, _ = pad_packed_sequence(states, batch_first=True)
        return self.out(states[:, -1])  # expect: DATA17


torch.manual_seed(0)
model = Reader()
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    x, lengths = torch.randn(8, 6, 4), torch.arange(8) % 4 + 3
    loss = nn.functional.cross_entropy(model(x, lengths), (x[:, 0, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

CLEAN = BUGGY.replace("torch.arange(8) % 4 + 3", "torch.full((8,), 6)").replace("  # expect: DATA17", "")

FIXED = BUGGY.replace("self.out(states[:, -1])", "self.out(hidden[-1])")
