"""Gradients vanish or explode.

## What it finds
Gradients that are many orders of magnitude smaller in one layer than in another of the same model, or so
large that a step can go anywhere, at most of the steps that were checked.

## Why it matters
Layers with vanishing gradients do not learn. Exploding gradients destroy the weights. Optimizers that scale
by the gradient's size, such as Adam, mask both for a while.

## How to fix
Use residual connections and normalization, initialize by the layer's width, clip the gradient norm, or lower
the learning rate.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.watch import Moment
from truestep.watch.evidence.facts.optimizing import UpdateMeasured

RULE = Meta(
    code="PROBE05",
    severity="info",
    needs=(UpdateMeasured,),
    caused_by=("LOOP11", "PROBE04", "PROBE06"),
    fix="Normalize, initialize by the layer's width, use residual connections, or clip the norm.",
)
_LARGE, _RATIO = 1e3, 3e3
_MIN_STEPS = 4


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find optimizers whose gradients are very small in some layers, or very large."""
    by_optimizer: dict[int, list[Moment[UpdateMeasured]]] = {}
    for moment in evidence.of(UpdateMeasured):
        by_optimizer.setdefault(moment.facts.optimizer, []).append(moment)
    for moments in by_optimizer.values():
        values = [[row.gradient for row in moment.facts.matrices] for moment in moments]
        large = [max(sizes) for sizes in values if max(sizes) > _LARGE]
        far = [_ratio(sizes) for sizes in values if _ratio(sizes) > _RATIO]
        for found, what in ((large, "explode"), (far, "vanish")):
            if len(found) >= _MIN_STEPS and len(found) > len(values) // 2:
                text = (
                    f"mean gradient up to {max(found):.1e}"
                    if what == "explode"
                    else f"the largest are {max(found):.0e} times the smallest"
                )
                yield Finding.at(
                    moments[0],
                    f"gradients {what}",
                    evidence=f"{text}, at {len(found)} of {len(values)} steps",
                )


def _ratio(sizes: list[float]) -> float:
    """Return how many times the largest is the second smallest: one matrix alone may be used little."""
    second = sorted(sizes)[1] if len(sizes) > 1 else 0.0
    return max(sizes) / second if second > 0 else 0.0


BUGGY = """
import torch
from torch import nn

torch.manual_seed(0)
layers = [layer for _ in range(5) for layer in (nn.Linear(16, 16), nn.Sigmoid())]
model = nn.Sequential(*layers, nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    x = torch.randn(32, 16)
    loss = (model(x) - x[:, :2]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # expect: PROBE05
"""

CLEAN = """
import torch
from torch import nn

torch.manual_seed(0)
layers = [layer for _ in range(6) for layer in (nn.Linear(16, 16), nn.LayerNorm(16), nn.SiLU())]
model = nn.Sequential(*layers, nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    x = torch.randn(32, 16)
    loss = (model(x) - x[:, :2]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
