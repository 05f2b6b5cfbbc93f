"""What a model uses without knowing it."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import truestep as ts
from tests.gathering import judged
from tests.zoo import ZOO

SCRIPT = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, 8)
        {keep}
    def forward(self, x):
        return {use}
torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(8):
    x = torch.randn(16, 4)
    optimizer.zero_grad()
    ((model(x) - x.sum(1, keepdim=True)) ** 2).mean().backward()
    optimizer.step()
"""
LAYERS = "self.heads[1](torch.relu(self.heads[0](self.stem(x))))"
WEIGHT = "self.stem(x) @ self.weights[0]"


@pytest.mark.practice("P24")
@pytest.mark.parametrize(
    ("keep", "use", "is_told"),
    [
        ("self.heads = [nn.Linear(8, 8), nn.Linear(8, 1)]", LAYERS, True),
        ("self.heads = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 1)])", LAYERS, False),
        ("self.weights = [nn.Parameter(torch.randn(8, 1))]", WEIGHT, True),
        ("self.weights = nn.ParameterList([nn.Parameter(torch.randn(8, 1))])", WEIGHT, False),
    ],
    ids=["modules in a list", "ModuleList", "parameters in a list", "ParameterList"],
)
def test_p24_check_tells_of_layers_and_parameters_in_plain_lists(
    keep: str, use: str, is_told: bool, tmp_path: Path
) -> None:
    """`truestep check` reports layers and parameters in a plain list, not those in torch's lists."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(keep=keep, use=use))
    gathered, told = judged(path)
    assert gathered.code == 0, gathered.output
    assert ("PAR01" in {item.rule.meta.code for item in told.findings}) == is_told


class Scaled(nn.Module):
    def __init__(self, *, is_buffer: bool) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)
        mean = torch.ones(2)
        if is_buffer:
            self.register_buffer("mean", mean)
        else:
            self.mean = mean

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x - self.mean)


@pytest.mark.practice("P24")
def test_p24_a_plain_tensor_is_neither_saved_nor_moved_and_is_told() -> None:
    """State in a plain tensor is missing from `state_dict()` and not moved by `.to()`: it is reported."""
    plain, right = Scaled(is_buffer=False), Scaled(is_buffer=True)
    assert "mean" not in plain.state_dict() and "mean" in right.state_dict()
    assert plain.to(torch.float64).mean.dtype == torch.float32
    assert right.to(torch.float64).mean.dtype == torch.float64
    (found,) = ts.model.unregistered(plain)
    assert (found.name, found.kind) == ("mean", "tensor") and "register_buffer" in str(found)
    assert ts.model.unregistered(right) == ()


def test_modules_parameters_and_tensors_are_found_three_deep_with_their_names() -> None:
    model = nn.Module()
    model.part = nn.Module()
    model.part.heads = {"flow": [nn.Linear(1, 1)], "alarm": (nn.Parameter(torch.zeros(1)),)}
    model.part.steps = [[[torch.zeros(1)]]]
    found = ts.model.unregistered(model)
    assert [(each.name, each.kind) for each in found] == [
        ("part.heads['flow'][0]", "module"),
        ("part.heads['alarm'][0]", "parameter"),
        ("part.steps[0][0][0]", "tensor"),
    ]


def test_a_second_way_to_a_registered_layer_is_not_told() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model.stack = [model[0]]
    model.of_layer = {"weight": model[0].weight}
    assert ts.model.unregistered(model) == ()
    assert ts.model.unregistered(ts.model.cut(model, before="0")) == ()


@pytest.mark.parametrize("name", ZOO)
def test_common_models_have_nothing_unregistered(name: str) -> None:
    model, inputs = ZOO[name]()
    model(**inputs)
    assert ts.model.unregistered(model) == ()
