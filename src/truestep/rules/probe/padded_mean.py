"""A mean over masked positions is divided by the padded length.

## What it finds
Hidden states that are multiplied by a mask, or set to zero where it is false, and then averaged over all
positions with `mean(dim=1)`. The rule reads the values: samples must end in zeros, and not all in the same
number of them. A mean that is corrected by the lengths afterwards is not reported, nor are states that were
never masked.

## Why it matters
The sum is right and the number it is divided by is not: the vector of a short sample shrinks with the padding
of its batch. The same sample gets another output in another batch.

## How to fix
Divide the sum by the number of positions that count: `(h * mask).sum(1) / mask.sum(1)`.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.analysis.flow import OperationGraph, place_of
from truestep.watch import Operation
from truestep.watch.evidence.facts.passes import BackwardPass, PaddingAveraged

RULE = Meta(
    code="PROBE14",
    severity="warning",
    needs=(BackwardPass, PaddingAveraged),
    fix="Divide the sum by the number of unmasked positions: (h * mask).sum(1) / mask.sum(1).",
)
_LEAST_STEPS = 2
_FILLING = ("aten.masked_fill.Scalar", "aten.masked_fill_.Scalar")


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find means over padding that a mask has set to zero."""
    flow = evidence.flow
    found: dict[tuple[str | None, int | None], list[tuple[Operation, Operation, PaddingAveraged]]] = {}
    for moment in evidence.of(PaddingAveraged):
        mean = flow.at(moment.facts.operation_index)
        masked = flow.maker(mean.ins[0]) if mean is not None and mean.ins else None
        if mean is None or masked is None or not _is_masked(masked) or _is_corrected(flow, mean):
            continue
        found.setdefault((mean.file, mean.line), []).append((mean, masked, moment.facts))
    for means in found.values():
        if len({mean.step for mean, _, _ in means}) >= _LEAST_STEPS:
            mean, masked, facts = means[0]
            lengths = ", ".join(map(str, facts.lengths))
            yield Finding.at(
                mean,
                "the mean over masked positions is divided by the padded length",
                count=len(means),
                evidence=f"states of shape {tuple(mean.ins[0].shape)} are masked "
                f"{place_of(masked, mean.file)} and averaged over {facts.num_places} positions; the first "
                f"samples have {lengths}",
            )


def _is_masked(item: Operation) -> bool:
    """Whether all features of a position are multiplied by one number, or are set to zero together."""
    if len(item.ins) != 2 or not item.ins[0].shape:
        return False
    state, mask = item.ins if item.ins[0].has_grad else item.ins[::-1]
    is_mask = not mask.has_grad and mask.shape[-1:] == (1,) and mask.shape[:-1] == state.shape[:-1]
    is_zero = item.name in _FILLING and item.scalars.endswith((", 0", ", 0.0"))
    return state.has_grad and is_mask and (is_zero or item.name == "aten.mul.Tensor")


def _is_corrected(flow: OperationGraph, mean: Operation) -> bool:
    """Whether the result is multiplied or divided by a number of each sample."""
    rows = mean.ins[0].shape[:1]
    return any(
        user.name in ("aten.mul.Tensor", "aten.div.Tensor", "aten.mul_.Tensor", "aten.div_.Tensor")
        and any(given.producer != mean.index and given.shape[:1] == rows for given in user.ins)
        for user in flow.users(mean)
    )


BUGGY = """
import torch
from torch import nn

torch.manual_seed(0)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(20, 8), nn.Linear(8, 1)

    def forward(self, words, mask):
        hidden = self.embed(words) * mask.unsqueeze(-1)
        return self.out(hidden.mean(dim=1)).squeeze(-1)  # expect: PROBE14


model = Reader()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(5):
    words, lengths = torch.randint(0, 20, (16, 9)), torch.randint(2, 10, (16,))
    mask = torch.arange(9) < lengths[:, None]
    target = ((words / 20) * mask).sum(1) / lengths
    loss = nn.functional.mse_loss(model(words, mask), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

CLEAN = """
import torch
from torch import nn

torch.manual_seed(0)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(20, 8), nn.Linear(8, 1)

    def forward(self, words, mask):
        hidden = self.embed(words) * mask.unsqueeze(-1)
        pooled = hidden.mean(dim=1) * (mask.shape[1] / mask.sum(1, keepdim=True))
        return self.out(pooled).squeeze(-1)


model = Reader()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(5):
    words, lengths = torch.randint(0, 20, (16, 9)), torch.randint(2, 10, (16,))
    mask = torch.arange(9) < lengths[:, None]
    target = ((words / 20) * mask).sum(1) / lengths
    loss = nn.functional.mse_loss(model(words, mask), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FIXED = BUGGY.replace("hidden.mean(dim=1))", "hidden.sum(dim=1) / mask.sum(1, keepdim=True))")
