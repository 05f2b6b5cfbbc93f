"""A model that predicts the next token can see it.

## What it finds
A model that is trained on its own input shifted by one, and whose outputs at early positions change when
later tokens are replaced. The rule passes one batch through a copy of the model in eval mode twice.

## Why it matters
The loss falls quickly, because the answer is in the input. When you use the model, the next token does not
exist yet, and its predictions are worthless. Perplexity in training and validation does not show it.

## How to fix
Mask the attention so that each position sees itself and earlier ones (`is_causal=True`, or a mask of
`torch.triu(..., diagonal=1)`), pad convolutions on the left only, and do not use bidirectional recurrence.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.watch.evidence.facts.passes import FutureSeen

RULE = Meta(
    code="PROBE02",
    severity="warning",
    needs=(FutureSeen,),
    is_lasting=True,
    fix="Mask later positions at this line: a causal mask with diagonal=1, or is_causal=True.",
)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find models that are trained to predict the next token and look ahead."""
    for moment in evidence.of(FutureSeen):
        facts = moment.facts
        if not facts.num_changed:
            continue
        place = facts.place or moment
        yield Finding(
            message="later tokens influence earlier outputs of a model that predicts the next token",
            file=place.file,
            line=place.line,
            step=moment.step,
            evidence=f"replacing the tokens from position {facts.cut} of {facts.length} on changed "
            f"{facts.num_changed} of the {facts.cut} outputs before them, by up to {facts.most:.2g} "
            "standard deviations; the targets are the inputs shifted by one",
        )


BUGGY = """
import torch
from torch import nn

torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.out = nn.Linear(16, 12)

    def forward(self, tokens):
        hidden = self.encoder(self.embed(tokens))  # expect: PROBE02
        return self.out(hidden)


model = Model()
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    text = torch.randint(0, 12, (8, 11))
    logits = model(text[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

CLEAN = """
import torch
from torch import nn

torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.out = nn.Linear(16, 12)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.out(self.encoder(self.embed(tokens), mask=mask))


model = Model()
tagger = nn.Sequential(nn.Embedding(12, 16), nn.GRU(16, 8, bidirectional=True, batch_first=True))
optimizer = torch.optim.Adam([*model.parameters(), *tagger.parameters()])
for step in range(4):
    text = torch.randint(0, 12, (8, 11))
    logits = model(text[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
    states, _ = tagger(text)
    loss = loss + nn.functional.cross_entropy(states.flatten(0, 1), (text % 2).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
