"""An averaged copy of the model is evaluated with the statistics of a BatchNorm that saw no batch.

## What it finds
A model that is called in eval mode with trained weights, but whose BatchNorm layers still have a running mean
of 0, a running variance of 1 and no batch counted. The model with the same layers that is trained has seen
batches. An average (EMA), teacher or target was updated through `parameters()` only.

## Why it matters
Running statistics are buffers, not parameters. In eval mode the copy normalizes with 0 and 1, which do not
fit its weights. Its scores are far worse than the average deserves.

## How to fix
Copy the buffers with each update, call `torch.optim.swa_utils.update_bn(loader, average)` before evaluation,
or use `AveragedModel`, which handles buffers.
"""

import ast
from collections.abc import Iterator
from typing import Any

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.analysis.places import calls, name_of
from truestep.rules.analysis.syntax import walk
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.structure import StatisticsMissing

RULE = Meta(
    code="PAR20",
    severity="error",
    needs=(StatisticsMissing, OptimizerStep),
    fix="Copy the buffers too, or call update_bn(loader, average) before the copy is evaluated.",
)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find copies that have weights and no statistics."""
    for moment in evidence.of(StatisticsMissing):
        facts = moment.facts
        yield Finding.at(
            moment,
            f"a copy of {facts.class_name} is evaluated with BatchNorm statistics that saw no batch",
            evidence=f"{len(facts.paths)} BatchNorm layers of the copy have trained weights, running mean 0, "
            f"running variance 1 and 0 batches counted in {facts.num_calls} calls in eval mode; those of the "
            f"trained model have seen {facts.num_batches} batches, with means up to {facts.mean:.2g} and "
            f"variances from {facts.lowest:.2g} to {facts.highest:.2g}",
            **_where_updated(evidence),
        )


def _where_updated(evidence: Evidence) -> dict[str, Any]:
    """Return the only loop that takes parameters of one model over into another; else nothing."""
    lines = {
        (source.path, loop.lineno)
        for source in evidence.sources
        for loop in walk(source.tree)
        if isinstance(loop, ast.For) and len([*calls(loop.iter, "parameters")]) == 2
        if any((name_of(node.func) or "").endswith("_") for node in _calls_in(loop))
    }
    return dict(zip(("file", "line"), lines.pop(), strict=True)) if len(lines) == 1 else {}


def _calls_in(loop: ast.For) -> list[ast.Call]:
    return [node for statement in loop.body for node in walk(statement) if isinstance(node, ast.Call)]


BUGGY = """
import copy

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
average = copy.deepcopy(model).eval()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(8):
    x = torch.randn(16, 4) + 1
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for kept, new in zip(average.parameters(), model.parameters()):  # expect: PAR20
            kept.lerp_(new, 0.2)
with torch.no_grad():
    x = torch.randn(64, 4) + 1
    print((average(x) - x.sum(1, keepdim=True)).square().mean())
"""

FIXED = BUGGY.replace("  # expect: PAR20", "").replace(
    "            kept.lerp_(new, 0.2)\n",
    "            kept.lerp_(new, 0.2)\n"
    "        for kept, new in zip(average.buffers(), model.buffers()):\n"
    "            kept.copy_(new)\n",
)

CLEAN = """
import copy

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
average, own = AveragedModel(model), copy.deepcopy(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = torch.randn(128, 4) + 1
for x in data.split(16):
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update_parameters(model)
    with torch.no_grad():
        for kept, new in zip(own.parameters(), model.parameters()):
            kept.lerp_(new, 0.2)
own.eval()
with torch.no_grad():
    print("before update_bn", own(data).mean())
for copied in (average, own):
    update_bn(data.split(16), copied)
    copied.eval()
    with torch.no_grad():
        print((copied(data) - data.sum(1, keepdim=True)).square().mean())
"""
