"""A visible future is found behind flat outputs, ignored targets and functions of the model."""

import pytest

from tests.gathering import run_text
from truestep.rules import Finding, find_rules

RULES = {rule.meta.code: rule for rule in find_rules()}

WRITER = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.attend = nn.Embedding(12, 16), nn.MultiheadAttention(16, 2, batch_first=True)
        self.parts = nn.ModuleDict(dict(wide=nn.Linear(16, 32), out=nn.Linear(32, 12)))
        parts = self.parts
        self.head = lambda x: parts.out(F.relu(parts.wide(x)))
        self.register_buffer("mask", torch.ones(10, 10).triu(1).bool())

    def forward(self, tokens, targets):
        hidden = self.embed(tokens)
        hidden = hidden + self.attend(hidden, hidden, hidden, MASK)[0]
        logits = self.head(hidden)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
        return LOGITS, loss


model = Writer()
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    text = torch.randint(0, 12, (8, 11))
    targets = text[:, 1:].clone()
    targets[:, 8:] = -1
    logits, loss = model(text[:, :-1], targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
SEEN, HIDDEN = "attn_mask=None", "attn_mask=self.mask"


def found_in(text: str) -> list[Finding]:
    ran = run_text(text)
    assert ran.code == 0, ran.output
    return list(RULES["PROBE02"].check(ran.evidence))


@pytest.mark.parametrize("logits", ["logits", "logits.view(-1, 12)"])
def test_a_visible_future_is_found(logits: str) -> None:
    text = WRITER.replace("LOGITS", logits)
    line = text[: text.index("hidden = hidden +")].count("\n") + 1
    assert [item.line for item in found_in(text.replace("MASK", SEEN))] == [line]
    assert found_in(text.replace("MASK", HIDDEN)) == []
