"""Weight decay reaches biases and the weights of normalisation.

## What it finds
An optimizer whose groups without weight decay miss most biases or all weights of normalisation, as the names
in the filter match nothing; and an optimizer with one group and weight decay for everything.

## Why it matters
Decay pulls scales and shifts towards zero, where they have no reason to be: a normalisation's weight is meant
to be near one. A filter that matches nothing does this silently, although the script says otherwise.

## How to fix
Choose by what a parameter is and not by its name: decay those with two or more dimensions, and nothing else.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.par._roster import Optimizer, Parameter, names, read_roster

RULE = Meta(
    code="PAR08",
    severity="info",
    needs=("step", "roster"),
    fix="Decay parameters with two or more dimensions only: p.ndim >= 2.",
)
_MIN_SHARE = 0.5
_STANDARD = {"AdamW": 0.01, "NAdamW": 0.01}
"""What an optimizer decays by if it is not told: that alone is no decision of the script's."""


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find decay where it does harm."""
    roster = read_roster(evidence)
    for optimizer in roster.stepped if roster is not None else ():
        own = [item for item in roster.of(optimizer) if not item.is_frozen] if roster is not None else []
        vectors = [item for item in own if len(item.shape) <= 1 and item.path is not None]
        decayed = [item for item in vectors if _decay_of(item, optimizer)]
        kinds = {bool(group.get("weight_decay")) for group in optimizer.groups}
        if not decayed:
            continue
        if kinds == {True, False} and _misses(vectors, decayed):
            yield Finding(
                message="the groups without weight decay miss biases and weights of normalisation: "
                "the filter matches other names than the model has",
                **optimizer.place,
                step=optimizer.first_step + 1,
                evidence=f"{len(decayed)} of {len(vectors)} vectors are decayed: {names(decayed)}",
            )
        elif kinds == {True} and _is_chosen(optimizer) and any(item.is_norm for item in decayed):
            yield Finding(
                message="weight decay also pulls biases and weights of normalisation towards zero",
                **optimizer.place,
                step=optimizer.first_step + 1,
                evidence=f"{len(decayed)} vectors are decayed: {names(decayed)}",
            )


def _decay_of(item: Parameter, optimizer: Optimizer) -> float:
    group = next((group for index, group in item.groups if index == optimizer.index), 0)
    known = optimizer.groups[group] if group < len(optimizer.groups) else {}
    return float(known.get("weight_decay") or 0.0)


def _misses(vectors: list[Parameter], decayed: list[Parameter]) -> bool:
    scales = [item for item in vectors if item.is_norm and not (item.path or "").endswith("bias")]
    are_all = bool(scales) and all(item in decayed for item in scales)
    return are_all or len(decayed) > _MIN_SHARE * len(vectors)


def _is_chosen(optimizer: Optimizer) -> bool:
    decays = {group.get("weight_decay") for group in optimizer.groups}
    return decays != {_STANDARD.get(optimizer.kind)}


BUGGY = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 1))
named = list(model.named_parameters())
skip = ("LayerNorm.weight", "LayerNorm.bias")
groups = [
    {"params": [p for n, p in named if not n.endswith(skip)], "weight_decay": 0.1},
    {"params": [p for n, p in named if n.endswith(skip)], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=0.01)  # expect: PAR08
for step in range(6):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

CLEAN = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 1))
groups = [
    {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": 0.1},
    {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=0.01)
for step in range(6):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
