"""Whether the signal gets through a model."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import truestep as ts
from tests.zoo import ZOO, bert, loss_of, lstm, resnet
from truestep.bits import digest_state
from truestep.errors import UsageError
from truestep.model.signal import MOST_CHANGE


def deep(activation: type[nn.Module], fill: Any, *, depth: int = 50, width: int = 100) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layer = nn.Linear(width, width)
        fill(layer.weight)
        nn.init.zeros_(layer.bias)
        layers += [layer, activation()]
    return nn.Sequential(*layers)


def normal(std: float) -> Any:
    return lambda weight: nn.init.normal_(weight, std=std)


def kaiming(weight: Tensor) -> None:
    nn.init.kaiming_normal_(weight, nonlinearity="relu")


def measured(model: nn.Module) -> ts.model.Signal:
    return ts.model.check_signal(model, torch.randn(64, 100))


@pytest.mark.practice("P28")
@pytest.mark.parametrize(
    ("activation", "fill", "verdict"),
    [
        (nn.Tanh, normal(0.01), "vanishing"),
        (nn.Tanh, normal(1.0), "exploding"),
        (nn.Tanh, nn.init.xavier_normal_, "fine"),
        (nn.ReLU, nn.init.xavier_normal_, "vanishing"),
        (nn.ReLU, kaiming, "fine"),
        (nn.ReLU, normal(1.0), "exploding"),
        (nn.Sigmoid, nn.init.xavier_normal_, "vanishing"),
    ],
)
def test_p28_the_verdict_follows_the_scheme_on_fifty_layers(activation: Any, fill: Any, verdict: str) -> None:
    """On fifty layers, `check_signal` separates schemes that suit the activation from those that do not."""
    torch.manual_seed(0)
    signal = measured(deep(activation, fill))
    assert signal.verdict == verdict, signal.reason
    assert (signal.begins is None) == (verdict == "fine")


@pytest.mark.practice("P28")
@pytest.mark.parametrize("name", ZOO)
def test_p28_common_models_as_they_come_are_fine(name: str) -> None:
    """A ResNet, an LSTM, a BERT, a GPT-2 and a T5 pass with their default initialization."""
    model, inputs = ZOO[name]()
    signal = ts.model.check_signal(model, inputs)
    assert signal.verdict == "fine", signal.reason
    # The threshold is far from both: what is fine stays twenty times below it.
    gradients = [layer.gradient_std for layer in signal.layers if layer.gradient_std is not None]
    assert max(gradients) / gradients[-1] < MOST_CHANGE / 20
    assert gradients[-1] / max(gradients[:3]) < MOST_CHANGE / 20


@pytest.mark.practice("P28")
@pytest.mark.parametrize("scheme", ["xavier", "orthogonal"])
def test_p28_a_gain_of_002_in_a_copied_recipe_kills_the_signal(scheme: str) -> None:
    """A widely copied `init_weights(gain=0.02)` hands 0.02 to xavier and orthogonal too: the signal dies."""
    torch.manual_seed(0)
    fill = {"xavier": nn.init.xavier_normal_, "orthogonal": nn.init.orthogonal_}[scheme]
    copied = measured(deep(nn.ReLU, lambda weight: fill(weight, gain=0.02), depth=10))
    assert copied.verdict == "vanishing" and copied.begins == "6"
    model = deep(nn.ReLU, kaiming, depth=10)
    ts.model.initialise(model, scheme)  # type: ignore[arg-type]
    assert measured(model).verdict == "fine"


def test_the_layer_where_it_begins_is_named() -> None:
    torch.manual_seed(0)
    model = deep(nn.ReLU, kaiming, depth=20)
    nn.init.normal_(model[20].weight, std=1e-7)
    signal = measured(model)
    assert signal.verdict == "vanishing" and signal.begins == "20"
    nn.init.normal_(model[20].weight, std=1e7)
    signal = measured(model)
    assert signal.verdict == "exploding" and signal.begins == "20"
    assert "at 20" in signal.reason and signal.reason in str(signal)


def test_gradients_are_followed_backward() -> None:
    torch.manual_seed(0)
    model = deep(nn.Tanh, normal(1.0), depth=30)
    signal = measured(model)
    by_name = {layer.name: layer.gradient_std for layer in signal.layers}
    last = by_name["58"]
    assert signal.reason.startswith("gradients go from") and signal.begins is not None
    assert by_name[signal.begins] > MOST_CHANGE * last
    assert by_name[str(int(signal.begins) + 2)] <= MOST_CHANGE * last


@pytest.mark.parametrize("name", ZOO)
def test_nothing_of_the_model_is_changed(name: str) -> None:
    model, inputs = ZOO[name]()
    loss_of(model(**inputs)).backward()
    gradients = [p.grad for p in model.parameters()]
    bits = digest_state(model.state_dict()), digest_state([g for g in gradients if g is not None])
    versions = [p._version for p in model.parameters()]
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    ts.model.check_signal(model, inputs)
    assert [p.grad is g for p, g in zip(model.parameters(), gradients, strict=True)] == [True] * len(
        gradients
    )
    assert (digest_state(model.state_dict()), digest_state([g for g in gradients if g is not None])) == bits
    assert [p._version for p in model.parameters()] == versions
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(module._forward_hooks for module in model.modules())


def test_the_numbers_are_those_of_the_model() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    x = torch.randn(8, 4)
    signal = ts.model.check_signal(model, x, loss=lambda output: output.square().mean())
    hidden = model[0](x)
    output = model[2](model[1](hidden))
    (gradient,) = torch.autograd.grad(output.square().mean(), hidden)
    assert signal.layers[0].activation_std == float(hidden.detach().double().std(correction=0))
    assert signal.layers[0].gradient_std == float(gradient.double().std(correction=0))


def test_dead_units_are_counted_wherever_the_relu_is_called() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 4, 3)
            self.fc = nn.Linear(4, 10)
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.conv(x)).mean((2, 3))
            return self.relu(self.fc(x))

    torch.manual_seed(0)
    model = Net()
    with torch.no_grad():
        model.conv.bias[0] = -1e3
        model.conv.bias[1:] = 1e3
        model.fc.bias.fill_(1e5)
        model.fc.bias[:5] = -1e6
    signal = ts.model.check_signal(model, torch.randn(8, 1, 6, 6))
    assert [layer.dead for layer in signal.layers] == [0.25, 0.5]
    assert {layer.dead for layer in ts.model.check_signal(*bert()).layers} == {None}


def test_a_layer_that_runs_twice_is_told_apart_and_a_detached_one_has_no_gradient() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.b(self.a(x).detach()))

    signal = ts.model.check_signal(Net(), torch.randn(4, 3))
    assert [layer.name for layer in signal.layers] == ["a", "b", "b (run 2)"]
    assert signal.layers[0].gradient_std is None and signal.layers[1].gradient_std is not None
    assert "none" in str(signal)


def test_a_frozen_trunk_and_no_grad_around_do_not_disturb() -> None:
    model, inputs = resnet()
    ts.model.freeze(model, ["conv1", "bn1", "layer*"])
    with torch.no_grad():
        signal = ts.model.check_signal(model, (inputs["images"],))
    assert [layer.name for layer in signal.layers if layer.gradient_std is not None] == ["fc"]


def test_one_number_and_equal_gradients_are_no_vanished_signal() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    assert ts.model.check_signal(model, torch.randn(1, 4)).verdict == "fine"
    signal = ts.model.check_signal(nn.Linear(4, 2), torch.randn(3, 4), loss=torch.sum)
    assert signal.verdict == "fine" and signal.layers[0].gradient_std == 1.0


@pytest.mark.parametrize("build", [resnet, lstm, bert])
def test_the_picture_names_the_layers_and_both_lines(build: Any, tmp_path: Path) -> None:
    model, inputs = build()
    signal = ts.model.check_signal(model, inputs)
    text = signal.picture().save(tmp_path / "signal.svg").read_text()
    assert all(f">{layer.name}<" in text for layer in signal.layers)
    assert ">activations<" in text and ">gradients<" in text and "fine" in text


def test_the_picture_marks_where_it_begins(tmp_path: Path) -> None:
    torch.manual_seed(0)
    signal = measured(deep(nn.Tanh, normal(1.0), depth=30))
    assert "\u2190 exploding from this layer" in signal.picture().save(tmp_path / "signal.svg").read_text()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.ReLU(), "no layer with weights ran in ReLU"),
        (
            nn.Linear(3, 3).requires_grad_(False),
            r"no gradient can flow into what the model returned \(Tensor\)\. Pass loss=",
        ),
    ],
)
def test_what_cannot_be_measured_is_said(model: nn.Module, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ts.model.check_signal(model, torch.ones(2, 3, requires_grad=isinstance(model, nn.ReLU)))
