"""The head of a model, found by running it."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import truestep as ts
from tests.zoo import ZOO, lstm, resnet
from truestep.bits import digest_state
from truestep.errors import UsageError

HEADS = {"resnet": "fc", "lstm": "fc", "bert": "classifier", "gpt2": "lm_head", "t5": "lm_head"}


@pytest.mark.practice("P26")
@pytest.mark.parametrize("name", ZOO)
def test_p26_the_head_is_found_whatever_its_name(name: str) -> None:
    """`replace_head` finds the last layer by running the model, and gives it another number of outputs."""
    model, inputs = ZOO[name]()
    state = torch.get_rng_state()
    kept = digest_state({key: t for key, t in model.state_dict().items() if not key.startswith(HEADS[name])})
    done = ts.model.replace_head(model, inputs, num_outputs=6, ties="break")
    assert [entry[0] for entry in done.changed] == [HEADS[name]]
    assert model.get_submodule(HEADS[name]).out_features == 6 and model.training
    after = digest_state({key: t for key, t in model.state_dict().items() if not key.startswith(HEADS[name])})
    assert kept == after, "running it moved no statistics"
    assert not any(module._forward_hooks for module in model.modules())
    drawn = torch.get_rng_state()
    torch.set_rng_state(state)
    old_bias = model.get_submodule(HEADS[name]).bias is not None
    nn.Linear(32, 6, bias=old_bias)
    assert torch.equal(torch.get_rng_state(), drawn), "only the new layer drew from the generator"


def test_a_convolution_is_a_head_too_and_keeps_its_settings() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 10, 3, padding=1, dilation=2, bias=False)
    )
    ts.model.replace_head(model, torch.zeros(1, 3, 8, 8), num_outputs=2)
    assert repr(model[2]) == repr(nn.Conv2d(4, 2, 3, padding=1, dilation=2, bias=False))


class Softened(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.softmax(self.fc(x), dim=-1)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.boxes, self.classes = nn.Linear(2, 4), nn.Linear(2, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.boxes(x), self.classes(x)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Softened(), "the outputs of Softened are made by no linear or convolution layer"),
        (Two(), r"the outputs of Two are made by boxes, classes, so .* truestep\.model\.replace"),
    ],
)
def test_where_the_head_is_not_clear_nothing_is_changed(model: nn.Module, message: str) -> None:
    before = [id(module) for module in model.modules()]
    with pytest.raises(UsageError, match=message):
        ts.model.replace_head(model, torch.zeros(1, 2), num_outputs=5)
    assert [id(module) for module in model.modules()] == before


@pytest.mark.parametrize("build", [resnet, lstm])
def test_no_outputs_are_refused(build: Any) -> None:
    model, inputs = build()
    with pytest.raises(UsageError, match="num_outputs is 0"):
        ts.model.replace_head(model, inputs, num_outputs=0)
