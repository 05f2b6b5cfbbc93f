"""The labels of masked tokens are the mask token itself.

## What it finds
A loss over tokens whose targets are all the same token, at every step looked at. The model was given that
token once for each of these targets: the labels were masked together with the inputs.

## Why it matters
The model learns to answer with the mask token wherever it sees it. The loss falls to zero within a few steps,
and the model has learned nothing about the hidden tokens.

## How to fix
Copy the tokens before masking: `labels = tokens.clone()`, or use `tokens.masked_fill(chosen, MASK)`, which
does not change `tokens`.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.loss._labels import labels_line
from truestep.watch import Moment
from truestep.watch.evidence.facts.passes import ClassesScored, OneTokenScored

RULE = Meta(
    code="LOSS18",
    severity="error",
    needs=(ClassesScored, OneTokenScored),
    fix="Copy the tokens before you mask them: labels = tokens.clone().",
)
_LEAST_STEPS, _LEAST_SCORED = 2, 8


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find losses that ask for the mask."""
    lines: dict[tuple[str | None, int | None], list[Moment[OneTokenScored]]] = {}
    for moment in evidence.of(OneTokenScored):
        lines.setdefault((moment.file, moment.line), []).append(moment)
    for (file, line), moments in lines.items():
        scored = [one for one in evidence.of(ClassesScored) if (one.file, one.line) == (file, line)]
        steps = {moment.step for moment in moments}
        tokens = {moment.facts.token for moment in moments}
        if len(scored) > len(moments) or len(steps) < _LEAST_STEPS or len(tokens) > 1:
            continue
        if not all(moment.facts.is_aligned for moment in moments) and not _is_telling(moments):
            continue
        facts = moments[0].facts
        if facts.num_scored < _LEAST_SCORED:
            continue
        numbers = ", ".join(str(moment.facts.num_scored) for moment in moments[:4])
        yield Finding.at(
            moments[0],
            f"all labels are token {facts.token}, which the model is given in their places",
            line=labels_line(evidence, moments[0]),
            count=len(moments),
            evidence=f"{numbers} targets in {len(moments)} steps looked at, all of them {facts.token}; "
            f"the model was given {facts.token} exactly as often, among {facts.num_given} tokens. "
            "Expected: the tokens that were there before masking",
        )


def _is_telling(moments: list[Moment[OneTokenScored]]) -> bool:
    """Whether the numbers differ from step to step, or cannot be one label for each row."""
    numbers = {moment.facts.num_scored for moment in moments}
    return len(numbers) > 1 and not any(
        moment.facts.num_scored == moment.facts.num_rows for moment in moments
    )


BUGGY = """
import torch
from torch import nn

MASK = 12
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(13, 16), nn.Linear(16, 13))
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    tokens = torch.randint(0, 12, (8, 10))
    inputs, labels = tokens, tokens
    chosen = torch.rand(tokens.shape) < 0.3
    inputs[chosen] = MASK
    loss = nn.functional.cross_entropy(model(inputs)[chosen], labels[chosen])  # expect: LOSS18
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FIXED = BUGGY.replace("inputs, labels = tokens, tokens", "inputs, labels = tokens.clone(), tokens").replace(
    "  # expect: LOSS18", ""
)

CLEAN = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(13, 16), nn.Flatten(), nn.Linear(160, 3))
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):  # sorted by label: the first batches have one, which is the number of the start token
    tokens = torch.cat([torch.zeros(8, 1).long(), torch.randint(1, 13, (8, 9))], 1)
    loss = nn.functional.cross_entropy(model(tokens), torch.zeros(8).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
