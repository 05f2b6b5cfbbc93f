"""Labels that are moved along the batch: told from targets that a model of sequences is asked for."""

import pytest

from tests.gathering import run_text
from truestep.rules import Finding, find_rules

RULES = {rule.meta.code: rule for rule in find_rules()}

WRITER = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
text = torch.randint(0, 12, (64, 9))
pairs = [PAIR for row in text]


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 16)
        self.rnn = nn.GRU(16, 16, batch_first=True)
        self.out = nn.Linear(16, 12)

    def forward(self, tokens, targets):
        logits = self.out(self.rnn(self.embed(tokens))[0])
        return F.cross_entropy(logits.flatten(0, 1), TARGETS)


model = Writer()
optimizer = torch.optim.Adam(model.parameters())
for tokens, targets in DataLoader(pairs, 16):
    optimizer.zero_grad()
    model(tokens, targets).backward()
    optimizer.step()
"""

LEARNER = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 8))
optimizer = torch.optim.Adam(model.parameters())
for x in DataLoader(torch.randn(64, 8), 16, ORDER):
    optimizer.zero_grad()
    F.mse_loss(model(x), x.roll(1, 0)).backward()
    optimizer.step()
"""

WHOLE = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.tensor([[1.0], [2.0], [3.0]])
y = torch.tensor([[2.0], [4.0], [6.0]])
model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    optimizer.zero_grad()
    F.mse_loss(model(x), TARGET).backward()
    optimizer.step()
"""


def found_in(text: str) -> list[Finding]:
    ran = run_text(text)
    assert ran.code == 0, ran.output
    return list(RULES["DATA14"].check(ran.evidence))


def test_labels_that_a_model_moves_are_found() -> None:
    text = WRITER.replace("PAIR", "(row[:-1], row[1:])").replace("TARGETS)", "targets.flatten().roll(1, 0))")
    assert [item.line for item in found_in(text)] == [text[: text.index("return F.")].count("\n") + 1]


@pytest.mark.parametrize("copy", ["row", "row.clone()"])
def test_targets_that_a_model_moves_to_the_next_token_are_right(copy: str) -> None:
    text = WRITER.replace("PAIR", f"(row, {copy})").replace("TARGETS)", "targets.flatten().roll(-1, 0))")
    assert found_in(text) == []


def test_another_sample_as_target_is_found_where_the_order_is_random_alone() -> None:
    assert len(found_in(LEARNER.replace("ORDER", "shuffle=True"))) == 1
    assert found_in(LEARNER.replace("ORDER", "shuffle=False")) == []  # it may be a series


def test_moved_labels_of_another_tensor_than_the_inputs_are_found() -> None:
    assert len(found_in(WHOLE.replace("TARGET", "y.roll(1, 0)"))) == 1
    assert found_in(WHOLE.replace("TARGET", "x.roll(-1, 0)")) == []  # the next of a series
    assert found_in(WHOLE.replace("TARGET", "y")) == []
