"""A model that reads from left to right is scored on the token that it was just given.

## What it finds
A loss over classes whose targets are the model's own input tokens at the same positions, for a model in
which an output depends on earlier tokens and not on later ones. The rule replaces later and earlier tokens
in a copy of the model to find out.

## Why it matters
The model learns to copy its input. The loss falls to zero quickly, and the model has learned nothing about
which token comes next. A model that sees the whole sequence, such as an autoencoder, is not reported.

## How to fix
Score the next token: pass `tokens[:, :-1]` to the model and compare with `tokens[:, 1:]`. A decoder gets
the target sequence shifted right, beginning with the start token.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.loss._labels import labels_line
from truestep.watch.evidence.facts.passes import ClassesScored, TargetGiven

RULE = Meta(
    code="LOSS11",
    severity="warning",
    needs=(ClassesScored, TargetGiven),
    fix="Score the next token: give the model tokens[:, :-1] and compare its outputs with tokens[:, 1:].",
)
_ALL = 0.999


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find losses that ask a model for what it was given."""
    for moment in evidence.of(TargetGiven):
        facts = moment.facts
        if facts.share < _ALL or facts.num_before or not facts.num_after:
            continue
        scored = [one for one in evidence.of(ClassesScored) if one.facts.shifts]
        same = [one for one in scored if one.facts.shifts[0].share >= _ALL]
        if scored and not same:
            continue
        place = same[0] if same else moment
        yield Finding.at(
            place,
            "the loss asks for the token that the model was given at the same position",
            line=labels_line(evidence, place),
            evidence=f"all {facts.num_scored} targets equal the input at their position; replacing later "
            f"tokens changed {facts.num_before} outputs before them, replacing earlier ones changed "
            f"{facts.num_after} after them, so the model should predict the next token",
        )


BUGGY = """
import torch
from torch import nn

torch.manual_seed(0)


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 16)
        self.rnn = nn.GRU(16, 16, batch_first=True)
        self.out = nn.Linear(16, 12)

    def forward(self, tokens):
        return self.out(self.rnn(self.embed(tokens))[0])


model = Writer()
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    text = torch.randint(0, 12, (8, 11))
    inputs, targets = text[:, :-1], text[:, :-1]
    logits = model(inputs)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())  # expect: LOSS11
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

CLEAN = """
import torch
from torch import nn

torch.manual_seed(0)


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 16)
        self.encoder = nn.GRU(16, 4, batch_first=True)
        self.decoder = nn.GRU(4, 16, batch_first=True)
        self.out = nn.Linear(16, 12)

    def forward(self, tokens):
        _, code = self.encoder(self.embed(tokens))
        states, _ = self.decoder(code.transpose(0, 1).expand(-1, tokens.shape[1], -1))
        return self.out(states)


model = Autoencoder()
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    text = torch.randint(0, 12, (8, 10))
    logits = model(text)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), text.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FIXED = BUGGY.replace("text[:, :-1], text[:, :-1]", "text[:, :-1], text[:, 1:]")
