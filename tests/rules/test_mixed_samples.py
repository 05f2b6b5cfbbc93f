"""Samples that influence each other are found behind a view of the loader's batch."""

import pytest

from tests.gathering import run_text
from truestep.rules import Finding, find_rules

RULES = {rule.meta.code: rule for rule in find_rules()}

READER = """
import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
pairs = [(torch.rand(1, 10, 10), row % 3) for row in range(96)]


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.Linear(100, 24), nn.Linear(24, 3)

    def forward(self, x):
        hidden = self.hidden(x.reshape(len(x), -1)).tanh()
        hidden = MIXED
        return self.out(hidden)


model = Reader()
optimizer = torch.optim.Adam(model.parameters())
for x, y in DataLoader(pairs, 16, shuffle=True):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x.VIEW), y).backward()
    optimizer.step()
"""


def found_in(text: str) -> list[Finding]:
    ran = run_text(text)
    assert ran.code == 0, ran.output
    return list(RULES["PROBE01"].check(ran.evidence))


@pytest.mark.parametrize("view", ["squeeze(1)", "reshape(-1, 100)", "view(-1, 10, 10)"])
def test_mixed_samples_are_found_in_a_view_of_a_batch(view: str) -> None:
    text = READER.replace("VIEW", view).replace("MIXED", "hidden.t().reshape(hidden.shape)")
    assert [item.line for item in found_in(text)] == [text[: text.index("hidden = hidden.t")].count("\n") + 1]
    assert found_in(READER.replace("VIEW", view).replace("MIXED", "hidden * 2")) == []
