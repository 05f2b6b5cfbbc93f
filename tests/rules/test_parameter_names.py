"""A finding about parameters names them and says the values that it is about."""

import pytest

from tests.rule_examples import buggy
from tests.rules.test_nearest_line import LOOP
from tests.rules.test_spared import run

NAMES = "0.weight, 0.bias, 2.weight, 2.bias"
CASES = {
    "zero-rate": ("PAR07", LOOP.replace("lr=0.01", "lr=0.0")),
    "zero-gradients": ("PAR06", LOOP.replace("guess = model(x)", "guess = model(x).round()")),
    "gradients-dropped-by-hand": (
        "LOOP02",
        LOOP.replace(
            "    optimizer.step()",
            "    for item in model.parameters(): item.grad = None\n    optimizer.step()",
        ),
    ),
    "second-step": ("LOOP17", LOOP + "    optimizer.step()\n"),
    "nonfinite": ("LOOP11", LOOP.replace("loss.backward()", "(loss * float('inf')).backward()")),
}


@pytest.mark.parametrize(("code", "text"), CASES.values(), ids=CASES)
def test_a_finding_names_the_parameters(code: str, text: str) -> None:
    assert NAMES in str(run(code, text)[0].evidence)


def test_one_parameter_without_a_model_is_named_by_its_shape() -> None:
    text = LOOP.replace(
        "torch.optim.SGD(model.parameters(), lr=0.01)", "torch.optim.SGD([model[2].bias], lr=0.0)"
    )
    (finding,) = run("PAR07", text)
    assert finding.message == "2.bias has a gradient, but the step does not change it"
    alone = """
weight = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.0)
for step in range(8):
    optimizer.zero_grad()
    (weight * torch.randn(3)).square().sum().backward()
    optimizer.step()
"""
    (finding,) = run("PAR07", alone)
    assert "a parameter of shape (3,)" in finding.message


def test_the_weights_that_change_most_are_named_with_their_size() -> None:
    (finding,) = run("PROBE07", LOOP.replace("SGD", "Adam").replace("lr=0.01", "lr=1e4"))
    assert "; 0.weight changes most, by 1e+04 where its weights are 0." in str(finding.evidence)


def test_the_other_network_is_named_by_its_parameters() -> None:
    (finding, *_) = run("LOOP23", buggy("LOOP23"))
    assert "parameters of the other network too: weight, bias;" in str(finding.evidence)


def test_of_many_parameters_a_few_are_named_and_the_others_counted() -> None:
    text = LOOP.replace("nn.Tanh(),", "nn.Tanh(), nn.Linear(8, 8), nn.Tanh(),").replace("lr=0.01", "lr=0.0")
    (finding,) = run("PAR07", text)
    assert "0.weight, 0.bias, 2.weight, 2.bias and 2 more: identical before" in str(finding.evidence)
