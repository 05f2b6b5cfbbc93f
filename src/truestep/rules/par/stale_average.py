"""An averaged model is used but never updated, or is updated from a model that is not trained.

## What it finds
A `torch.optim.swa_utils.AveragedModel` that is called after training steps, although `update_parameters()`
was never called. Also one that is updated again and again from a model whose weights do not change between
the updates, while an optimizer makes steps.

## Why it matters
The "average" is the model as it was when the average was made: untrained. Evaluations of it measure
nothing, and a teacher or target of that kind gives constant goals.

## How to fix
Call `average.update_parameters(model)` after `optimizer.step()`, with the model that the optimizer trains.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.structure import AverageKept

RULE = Meta(
    code="PAR16",
    severity="error",
    needs=(AverageKept, OptimizerStep),
    fix="Call average.update_parameters(model) after optimizer.step(), with the model that is trained.",
)
_LEAST_STEPS, _LEAST_UPDATES = 3, 3


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find averages that do not follow the training."""
    is_whole = evidence.first.ended == "finished"  # a run that is cut short may not come to the first update
    for moment in evidence.of(AverageKept):
        facts = moment.facts
        if is_whole and not facts.num_updates and facts.num_calls and facts.num_steps >= _LEAST_STEPS:
            place = facts.made_at or moment
            message = "the averaged model is used, but update_parameters() is never called"
            seen = (
                f"{facts.num_steps} optimizer steps and {facts.num_calls} calls of the average, 0 updates: "
                "it still has the weights that it was created with"
            )
        elif (
            facts.num_updates >= _LEAST_UPDATES and not facts.num_moved and facts.num_between >= _LEAST_STEPS
        ):
            place = facts.updated_at or moment
            message = "the averaged model is updated from a model that is not trained"
            seen = (
                f"{facts.num_updates} updates over {facts.num_between} optimizer steps found the same "
                "weights; expected weights that change with each step"
            )
        else:
            continue
        yield Finding(message=message, file=place.file, line=place.line, evidence=seen)


BUGGY = """
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

torch.manual_seed(0)
model = nn.Linear(4, 1)
average = AveragedModel(model)  # expect: PAR16
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
average.eval()
with torch.no_grad():
    x = torch.randn(64, 4)
    print((average(x) - x.sum(1, keepdim=True)).square().mean())
"""

CLEAN = """
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

torch.manual_seed(0)
model = nn.Linear(4, 1)
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
spare = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step >= 2:
        average.update_parameters(model)
average.eval()
with torch.no_grad():
    x = torch.randn(64, 4)
    print((average(x) - x.sum(1, keepdim=True)).square().mean())
"""

FIXED = BUGGY.replace(
    "    optimizer.step()\n", "    optimizer.step()\n    average.update_parameters(model)\n"
)
