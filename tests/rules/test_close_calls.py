"""Mistakes written in several ways, and correct scripts that come close to them."""

import pytest

from tests.gathering import expected, run_text
from truestep.rules import find_rules

RULES = {rule.meta.code: rule for rule in find_rules()}
START = (
    "import copy\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\ntorch.manual_seed(0)\n"
)


def lines_found(code: str, text: str) -> set[int | None]:
    """Return the lines at which a rule reports a script that is run."""
    found = run_text(START + text)
    assert found.code == 0, found.output
    assert found.evidence.first.troubles == []
    return {finding.line for finding in RULES[code].check(found.evidence)}


def assert_found(code: str, text: str) -> None:
    assert lines_found(code, text) == expected(START + text)[code]


AVERAGED = """
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
target, first = copy.deepcopy(model), copy.deepcopy(model)
{setup}
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(5):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for old, new, start in zip(target.parameters(), model.parameters(), first.parameters()):
            {update}
    {after}
"""


def averaged(*, setup: str = "", update: str = "pass", after: str = "") -> str:
    return AVERAGED.format(setup=setup, update=update, after=after)


LOADED = """
state, tau = target.state_dict(), 0.005
    for name, value in model.state_dict().items():
        state[name] = tau * state[name] + (1 - tau) * value  # expect: PAR23
    target.load_state_dict(state)
"""
INVERTED = {
    "lerp": averaged(update="old.lerp_(new, 0.99)  # expect: PAR23"),
    "difference": averaged(update="old.sub_(0.999 * (old - new))  # expect: PAR23"),
    "data": averaged(
        setup="tau = 0.005", update="old.data = new.data * (1 - tau) + tau * old.data  # expect: PAR23"
    ),
    "copied": averaged(
        setup="tau = 0.005", update="old.data.copy_(tau * old.data + (1.0 - tau) * new.data)  # expect: PAR23"
    ),
    "loaded": averaged(after=LOADED.strip()),
    "lists": averaged(
        after="torch._foreach_mul_([*target.parameters()], 0.01)\n    "
        "torch._foreach_add_([*target.parameters()], [*model.parameters()], alpha=0.99)  # expect: PAR23"
    ).replace("    torch._foreach", "    with torch.no_grad(): torch._foreach"),
    "torch": averaged(
        setup="average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.001))",
        after="average.update_parameters(model)  # expect: PAR23",
    ),
    "function": averaged(
        setup="average = AveragedModel(model, avg_fn=lambda a, p, n: 0.1 * a + 0.9 * p)  # expect: PAR23",
        after="average.update_parameters(model)",
    ),
}


@pytest.mark.parametrize("name", INVERTED)
def test_an_inverted_average_is_found(name: str) -> None:
    assert_found("PAR23", INVERTED[name])


FOLLOWED = {
    "copied": averaged(update="old.lerp_(new, 1.0)"),
    "slowly": averaged(update="old.lerp_(new, 0.005)"),
    "warms up": averaged(update="old.lerp_(new, 1 - min(0.999, (step + 1) / 1000))"),
    "constant in the first epoch": averaged(
        setup="epoch = 0", update="old.lerp_(new, 1 - 0.999 * (epoch + 1) / 30)"
    ),
    "pulled to the start": averaged(update="new.copy_(0.95 * new + 0.05 * start)"),
    "evaluated between": averaged(update="old.copy_(0.05 * start + 0.95 * new)"),
    "series": averaged(
        setup="x0, level = torch.randn(9, 4), torch.zeros(4)", after="level = 0.05 * level + 0.95 * x0[step]"
    ),
    "mean of all": averaged(setup="average = AveragedModel(model)", after="average.update_parameters(model)"),
    "by torch": averaged(
        setup="average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))",
        after="average.update_parameters(model)",
    ),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_an_average_that_follows_slowly_is_spared(name: str) -> None:
    assert lines_found("PAR23", FOLLOWED[name]) == set()
