"""Slow faults: what is named, and what is left alone."""

import pytest

from tests.gathering import run_text
from truestep.rules import Evidence, Finding, find_rules

RULES = {rule.meta.code: rule for rule in find_rules()}


def found(code: str, evidence: Evidence) -> list[Finding]:
    return list(RULES[code].check(evidence))


TWICE = """
import torch
from torch import nn

def train(goal):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(200):
        x = torch.randn(8, 4)
        loss = (model(x) - goal).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

torch.manual_seed(0)
train(1.0)
train(50.0)
"""


def test_the_first_loss_of_another_training_is_no_spike() -> None:
    assert not found("LONG01", run_text(TWICE).evidence)
    spiking = TWICE.replace(".mean()", ".mean() + 1000 * (step == 150)")
    assert len(found("LONG01", run_text(spiking).evidence)) == 1


PLANNED = """
import torch
from torch import nn

weight = nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=0.0)
for step in range(400):
    level = LEVEL
    scores = torch.tensor([[0.0, level]]) + 0 * weight
    loss = nn.functional.cross_entropy(scores, torch.tensor([0]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("level", "words"),
    [
        pytest.param("3 - step / 100 if step < 330 else 20.0", "and ends at 20 after", id="late"),
        pytest.param(
            "3 - step / 100 if step < 250 else 50.0 if step < 300 else float('nan')",
            "rises to 50 before it is infinite or NaN",
            id="then-nan",
        ),
        pytest.param("3 - step / 100 if step < 250 else float('nan')", None, id="only-nan"),
        pytest.param("3 - step / 100 if step < 380 else 20.0", None, id="last-moment"),
        pytest.param("3 - step / 100 if step < 200 else 4.0", None, id="little-higher"),
    ],
)
def test_a_loss_that_ends_far_above_its_start_diverges(level: str, words: str | None) -> None:
    findings = found("LONG02", run_text(PLANNED.replace("LEVEL", level)).evidence)
    assert [words in (item.evidence or "") for item in findings if words] == [True] * bool(words)
    assert bool(findings) == bool(words)
