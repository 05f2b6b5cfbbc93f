"""A loss that rises until it is not finite is told from an operation whose derivative is not."""

from tests.gathering import run_text
from tests.rule_examples import buggy
from truestep.rules import Finding, find_rules

RULES = {rule.meta.code: rule for rule in find_rules()}

FITTED = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.arange(8.0)[:, None]
model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
for step in range(40):
    optimizer.zero_grad()
    loss = (model(x) - 2 * x).square().mean()
    loss.backward()
    optimizer.step()
"""


def found_in(text: str) -> list[Finding]:
    return list(RULES["LOOP11"].check(run_text(text).evidence))


def test_a_rate_with_which_training_diverges_is_named_where_it_is_given() -> None:
    (found,) = found_in(FITTED.replace("RATE", "5.0"))
    assert found.line == FITTED[: FITTED.index("optimizer =")].count("\n") + 1
    assert "diverges" in found.message
    assert found_in(FITTED.replace("RATE", "0.01")) == []


def test_a_derivative_that_is_not_finite_at_once_is_no_divergence() -> None:
    found = found_in(buggy("LOOP11"))
    assert found and not any("diverges" in item.message for item in found)
