"""The loss does not change.

## What it finds
A loss that stays at its first value for at least 96 steps, in a script with one optimizer and one backward
pass.

## Why it matters
The model learns nothing. The cause is elsewhere: a learning rate that is far too small or too large, a loss
that is detached from the model, inputs without information, labels that do not match them.

## How to fix
Try to fit one batch. If that fails too, check the gradients and the learning rate. If it works, check the
data.
"""

from collections.abc import Iterator
from math import sqrt
from statistics import mean, pstdev

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.analysis.losses import find_levels, has_one_loss
from truestep.watch.evidence.facts.optimizing import LossLevel

RULE = Meta(
    code="PROBE08",
    severity="info",
    needs=(LossLevel,),
    caused_by=("LOOP10", "LOOP12", "LOSS05", "PAR03", "PAR05", "PAR07", "PROBE03", "PROBE04", "PROBE06"),
    fix="Try to fit a single batch; if that fails too, check the gradients and the learning rate.",
    is_quiet=True,
    is_preview=True,
)
_MIN_LOOKS, _SAME = 7, 0.01


def is_observed(evidence: Evidence) -> bool:
    """Whether the loss was read often enough."""
    return len(find_levels(evidence)) >= _MIN_LOOKS


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find a loss that stays where it began."""
    levels = find_levels(evidence)
    if not has_one_loss(evidence):
        return
    values = [loss for _, loss in levels]
    num = len(values) // 3
    first, last = values[:num], values[-num:]
    scale = abs(mean(values)) or 1.0
    noise = max(pstdev(first), pstdev(last)) / sqrt(num)
    if mean(last) > mean(first) - max(_SAME * scale, noise) and max(values) - min(values) < scale:
        yield Finding.at(
            levels[0][0],
            "the loss does not change",
            evidence=f"{mean(first):.4g} in the first third and {mean(last):.4g} in the last of "
            f"{levels[-1][0].step + 1} steps",
        )


BUGGY = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)
x = torch.randn(32, 4)
for step in range(128):
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()  # expect: PROBE08
    optimizer.step()
"""

CLEAN = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
x = torch.randn(32, 4)
for step in range(128):
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
