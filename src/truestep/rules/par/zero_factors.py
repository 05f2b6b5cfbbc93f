"""Parameters that are multiplied with each other all start at zero, so none of them can ever move.

## What it finds
Two or more parameters that are zero and whose gradient is exactly zero at every step looked at, such as both
matrices of a LoRA adapter, or a gate of zero in front of a layer of zeros. The rule changes them in a copy of
the model: each alone changes no output, all together do.

## Why it matters
The gradient of each factor is multiplied by the other one. If both are zero, both gradients are zero forever.
The adapter or branch never learns, and the rest of the model trains around it.

## How to fix
Start one of the factors with random values, such as LoRA's A with `kaiming_uniform_`, and only the other with
zeros. The product is still zero in the beginning.
"""

import ast
from collections.abc import Iterator
from typing import Any

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.analysis.optimizers import where_made
from truestep.rules.analysis.places import assignments, class_in, name_of
from truestep.rules.analysis.syntax import walk
from truestep.rules.par._roster import read_roster
from truestep.watch.evidence.facts.optimizing import FactorsZero, OptimizerStep

RULE = Meta(
    code="PAR19",
    severity="error",
    needs=(FactorsZero, OptimizerStep),
    fix="Give one of the factors random values, and start only the other with zeros.",
)
_FILLS = frozenset({"zeros_", "zero_", "constant_", "fill_"})


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find products of zeros that are to be trained."""
    for moment in evidence.of(FactorsZero):
        facts = moment.facts
        first, last = facts.paths[0], facts.paths[1]
        yield Finding.at(
            moment,
            f"{first} and {last} are both zero and multiply each other: neither can learn",
            step=1,
            evidence=f"all weights and all gradients of {', '.join(facts.paths)} are exactly 0 at "
            f"{facts.num_steps} steps looked at. In a copy of the model, changing any one of them changed no "
            f"output; changing all of them changed an output by {facts.change:.2g}",
            **(_where_zeroed(evidence, facts) or where_made(evidence, facts.optimizer)),
        )


def _where_zeroed(evidence: Evidence, facts: FactorsZero) -> dict[str, Any]:
    """Return the line that fills the first factor, or the one that makes it."""
    roster = read_roster(evidence)
    first = facts.paths[0]
    listed = [item for item in roster.parameters if item.path == first] if roster is not None else []
    words = [word for word in first.split(".") if not word.isdigit()]
    for item in listed:
        for source in evidence.sources:
            tree = class_in(source, item.holder)
            if tree is source.tree:
                continue
            for word in reversed(words):
                calls = [node for node in walk(tree) if isinstance(node, ast.Call)]
                lines = [call.lineno for call in calls if _is_fill(call, word)]
                lines += [statement.lineno for statement, _ in assignments(tree, word)]
                if lines:
                    return {"file": source.path, "line": lines[0]}
    return {}


def _is_fill(call: ast.Call, word: str) -> bool:
    """Whether a call such as `nn.init.zeros_(self.a.weight)` or `self.a.weight.data.zero_()` fills it."""
    if name_of(call.func) not in _FILLS:
        return False
    return any(name_of(node) == word for part in (call.func, *call.args) for node in walk(part))


BUGGY = """
import torch
from torch import nn

class Adapted(nn.Module):
    def __init__(self, base, rank=2):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.zeros(rank, base.in_features))  # expect: PAR19
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T

torch.manual_seed(0)
model = nn.Sequential(Adapted(nn.Linear(4, 8)), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.Adam([item for item in model.parameters() if item.requires_grad], lr=0.01)
for step in range(8):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FIXED = BUGGY.replace("torch.zeros(rank, base", "torch.randn(rank, base").replace("  # expect: PAR19", "")

CLEAN = FIXED.replace("range(8)", "range(12)").replace("self.base(x) + x", "self.base(x) + 0.5 * x")
