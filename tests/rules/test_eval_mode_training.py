"""A head that is trained on purpose while its backbone stays in eval mode, and a model that is not."""

from typing import Any

import pytest

from tests.gathering import run_text
from truestep.rules import find_rules

RULE = next(rule for rule in find_rules() if rule.meta.code == "MODE03")

PROBE = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(96, 6)
y = (x[:, 0] > 0).long()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x):
        return self.head(self.backbone(x))


def accuracy():
    model.eval()
    with torch.no_grad():
        return (model(x[64:]).argmax(1) == y[64:]).float().mean().item()


model, other = Net(), nn.Linear(6, 2)
model.backbone.requires_grad_(False)
optimizer = torch.optim.Adam(model.head.parameters())
for epoch in range(3):
    MODES
    for a, b in zip(x[:64].split(16), y[:64].split(16)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a) + other(a).detach(), b).backward()
        optimizer.step()
    print(accuracy())
"""


def found(modes: str) -> list[Any]:
    done = run_text(PROBE.replace("MODES", modes))
    assert done.code == 0, done.output
    return list(RULE.check(done.evidence))


@pytest.mark.parametrize(
    "modes",
    [
        "model.backbone.eval(); model.head.train()",
        "model.head.train(); model.backbone.eval()",
        "model.eval(); model.head.train()",
        "model.train() if epoch == 0 else (model.eval(), model.head.train())",
    ],
)
def test_a_head_that_is_switched_to_train_mode_alone_is_on_purpose(modes: str) -> None:
    assert found(modes) == []


@pytest.mark.parametrize(
    "modes", ["pass", "model.eval()", "other.train()", "model.head.train(); model.eval()"]
)
def test_a_model_of_which_nothing_is_in_train_mode_is_found(modes: str) -> None:
    assert len(found(modes)) == 1
