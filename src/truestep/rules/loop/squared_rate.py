"""The function of a `LambdaLR` returns the learning rate instead of a factor.

## What it finds
A `LambdaLR` whose highest factor is exactly the learning rate that the optimizer was built with, before the
rate falls again.

## Why it matters
`LambdaLR` multiplies the optimizer's rate by what its function returns. A function that returns the rate
itself makes it the square: 0.001 becomes 0.000001. The model hardly learns, and nothing fails.

## How to fix
Return a factor: 1 for the full rate. Or build the optimizer with `lr=1`.
"""

from collections.abc import Iterator
from math import isclose

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.loop._schedules import find_schedules
from truestep.watch.evidence.facts.optimizing import OptimizerStep, SchedulerMade, SchedulerStep

RULE = Meta(
    code="LOOP25",
    severity="error",
    needs=(SchedulerMade, SchedulerStep, OptimizerStep),
    fix="Return a factor from the function, 1 for the full rate.",
)
_CLASS, _MOST, _LEAST_RATES = "LambdaLR", 0.5, 3


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find functions whose highest factor is the rate itself."""
    for schedule in find_schedules(evidence):
        facts, rates = schedule.made.facts, schedule.rates
        first = facts.settings.base_rates[:1]
        is_one = bool(first) and facts.settings.base_rates == first * len(facts.settings.base_rates)
        if facts.class_name != _CLASS or not is_one or len(set(rates)) < _LEAST_RATES:
            continue
        base, highest = first[0], max(rates)
        if 0 < base < _MOST and rates[-1] < highest and isclose(highest, base * base, rel_tol=1e-6):
            yield Finding(
                message="LambdaLR squares the learning rate: its function returns the rate, not a factor",
                file=schedule.made.file,
                line=schedule.made.line,
                evidence=f"the optimizer was built with {base:.3g}; the highest rate is {highest:.3g}, "
                f"so the highest factor is {highest / base:.3g}, expected 1",
            )


BUGGY = """
import math
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
rate = 0.05
optimizer = torch.optim.SGD(model.parameters(), lr=rate)

def cosine(step):
    return rate * 0.5 * (1 + math.cos(math.pi * step / 8))

scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, cosine)  # expect: LOOP25
for step in range(8):
    x = torch.randn(16, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
"""

CLEAN = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 80))
for step in range(8):  # a warm-up that is cut off where its factor is 0.1
    x = torch.randn(16, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
"""

FIXED = BUGGY.replace("return rate * 0.5", "return 0.5")
