"""Features from inside a model, by its own forward."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import truestep as ts
from tests.zoo import ZOO, loss_of, lstm, resnet
from truestep.errors import UsageError

LAYERS = {
    "resnet": "layer2",
    "lstm": "lstm",
    "bert": "bert.encoder.layer.0",
    "gpt2": "transformer.h.0.mlp",
    "t5": "encoder.block.0.layer.1",
}


def first_tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else value[0]


def calls_in(model: nn.Module) -> list[str]:
    """Return a list that fills with the names of modules as they run."""
    called: list[str] = []
    for name, module in model.named_modules():
        module.register_forward_pre_hook(lambda _module, _inputs, name=name: called.append(name))
    return called


@pytest.mark.practice("P26")
@pytest.mark.parametrize("name", ZOO)
def test_p26_a_cut_model_gives_the_activation_of_the_full_model(name: str) -> None:
    """`cut` returns bit for bit what a layer returns inside the full model, and the same gradients."""
    model, inputs = ZOO[name]()
    seen: list[Tensor] = []
    layer = model.get_submodule(LAYERS[name])
    handle = layer.register_forward_hook(lambda _module, _inputs, output: seen.append(first_tensor(output)))
    torch.manual_seed(1)
    model(**inputs)
    handle.remove()
    torch.manual_seed(1)
    features = first_tensor(ts.model.cut(model, after=LAYERS[name])(**inputs))
    assert torch.equal(features, seen[0])
    parameters = [p for p in model.parameters() if p.requires_grad]
    true = torch.autograd.grad(seen[0].square().sum(), parameters, allow_unused=True)
    ours = torch.autograd.grad(features.square().sum(), parameters, allow_unused=True)
    assert any(gradient is not None for gradient in ours)
    for one, other in zip(true, ours, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)


@pytest.mark.parametrize("name", ZOO)
def test_layers_behind_the_cut_do_not_run_and_no_hook_stays(name: str) -> None:
    model, inputs = ZOO[name]()
    called = calls_in(model)
    model(**inputs)
    full = list(called)
    called.clear()
    ts.model.cut(model, after=LAYERS[name])(**inputs)
    assert called == full[: len(called)] and len(called) < len(full)
    inside = [each for each in called if each.startswith(LAYERS[name])]
    assert called[-1] == inside[-1]
    layer = model.get_submodule(LAYERS[name])
    assert not layer._forward_hooks and len(layer._forward_pre_hooks) == 1


@pytest.mark.parametrize("name", ZOO)
def test_a_cut_model_has_the_state_and_the_mode_of_the_model(name: str) -> None:
    model, _ = ZOO[name]()
    features = ts.model.cut(model, before=LAYERS[name])
    assert list(features.state_dict()) == list(model.state_dict())
    assert [id(p) for p in features.parameters()] == [id(p) for p in model.parameters()]
    features.eval()
    assert not model.training and not any(module.training for module in model.modules())
    features.to(torch.float64)
    assert all(p.dtype == torch.float64 for p in model.parameters() if p.is_floating_point())
    ts.model.replace(model, LAYERS[name], by=nn.Identity())
    assert isinstance(features.get_submodule(LAYERS[name]), nn.Identity)


def test_copies_and_pickles_of_a_cut_model_are_whole() -> None:
    model, inputs = resnet()
    features = ts.model.cut(model.eval(), before="fc")
    for each in (copy.deepcopy(features), pickle.loads(pickle.dumps(features))):
        assert torch.equal(each(**inputs), features(**inputs))
        with torch.no_grad():
            each.conv1.weight.zero_()
        assert not torch.equal(each(**inputs), features(**inputs))


def test_a_cut_model_is_a_layer_of_a_new_one_and_trains() -> None:
    model, inputs = resnet()
    new = nn.Sequential(ts.model.cut(model, before="fc"), nn.Linear(32, 2))
    loss_of(new(inputs["images"])).backward()
    assert model.conv1.weight.grad is not None and model.fc.weight.grad is None


def test_a_cut_inside_a_cut_stops_at_the_inner_one() -> None:
    model, inputs = resnet()
    outer = nn.Sequential(ts.model.cut(model, after="layer1"), nn.Flatten(), nn.LazyLinear(2))
    inner = ts.model.cut(outer, after="0.bn1")
    assert inner(inputs["images"]).shape == (4, 8, 16, 16)


def test_an_error_of_the_model_passes_and_no_hook_stays() -> None:
    model, _ = resnet()
    with pytest.raises(RuntimeError, match="channels"):
        ts.model.cut(model, after="fc")(torch.zeros(1, 1, 8, 8))
    assert not model.fc._forward_hooks


def test_an_except_in_the_forward_does_not_swallow_the_cut() -> None:
    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(2, 3)

        def forward(self, x: Tensor) -> Tensor:
            try:
                return self.a(x)
            except Exception:  # noqa: BLE001
                return x

    assert ts.model.cut(Careful(), after="a")(torch.zeros(1, 2)).shape == (1, 3)


def test_a_cut_inside_a_checkpointed_part_has_its_gradients() -> None:
    class Saving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3))

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.part, x, use_reentrant=False)

    model = Saving()
    ts.model.cut(model, after="part.1")(torch.ones(1, 2)).sum().backward()
    assert model.part[0].weight.grad is not None and model.part[2].weight.grad is None


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # dynamo's own, at a graph break
def test_a_compiled_cut_model_gives_the_same() -> None:
    model, inputs = resnet()
    features = ts.model.cut(model.eval(), before="fc")
    torch._dynamo.reset()
    assert torch.equal(torch.compile(features, backend="eager")(**inputs), features(**inputs))


def test_a_layer_that_does_not_run_is_an_error() -> None:
    class Skipping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x)

    with pytest.raises(UsageError, match="b did not run in this forward"):
        ts.model.cut(Skipping(), after="b")(torch.zeros(1, 2))


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ({}, "pass one of after='layer' and before='layer'"),
        ({"after": "fc", "before": "lstm"}, "pass one of"),
        ({"after": ""}, "stands for the whole model"),
        ({"after": "*"}, r"stands for embedding, lstm, dropout, fc\. Pass one name"),
        ({"after": "lstn"}, r"The nearest names are lstm"),
    ],
)
def test_a_place_that_is_not_one_module_is_refused(places: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ts.model.cut(lstm()[0], **places)


def test_several_inputs_of_a_layer_come_as_a_tuple() -> None:
    model = nn.Sequential(nn.Bilinear(2, 3, 1))

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Bilinear(2, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.mix(x, input2=torch.ones(1, 3))

    first, second = ts.model.cut(Two(), before="mix")(torch.zeros(1, 2))
    assert first.shape == (1, 2) and second.shape == (1, 3)
    assert "before='0'" in repr(ts.model.cut(model, before="0"))
