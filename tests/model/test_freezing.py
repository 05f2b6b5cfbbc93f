"""Frozen parameters stay, and so do the statistics of frozen normalisation."""

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import truestep as ts
from tests.gathering import judged
from tests.processes import run_processes
from tests.zoo import ZOO, gpt2, loss_of, resnet
from truestep.base.bits import digest_state
from truestep.errors import UsageError

TRUNKS: dict[str, Any] = {
    "resnet": ["conv1", "bn1", "layer*"],
    "lstm": ["embedding", "lstm"],
    "bert": "bert",
    "gpt2": "transformer.h.*",
    "t5": "encoder.block",
}


def train(model: nn.Module, inputs: dict[str, Any], *, num_steps: int = 2) -> None:
    # Momentum and decay would move a parameter that the optimizer holds, even without a gradient of its own.
    optimizer = torch.optim.SGD(ts.model.trainable(model), lr=0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(num_steps):
        model.train()
        optimizer.zero_grad()
        loss_of(model(**inputs)).backward()
        optimizer.step()


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.practice("P25")
@pytest.mark.parametrize("name", ZOO)
def test_p25_training_leaves_every_bit_of_a_frozen_part_alone(name: str) -> None:
    """After `freeze`, training changes no bit of the frozen part, neither weights nor running statistics."""
    model, inputs = ZOO[name]()
    frozen = ts.model.freeze(model, TRUNKS[name])
    before = state(model)
    train(model, inputs)
    changed = {key for key, tensor in model.state_dict().items() if not torch.equal(tensor, before[key])}
    learning = {
        key for key, parameter in model.named_parameters(remove_duplicate=False) if parameter.requires_grad
    }
    assert changed and changed <= learning
    assert frozen.num_trainable == sum(p.numel() for p in ts.model.trainable(model))
    assert frozen.num_frozen + frozen.num_trainable == sum(p.numel() for p in model.parameters())


@pytest.mark.practice("P27")
def test_p27_a_tied_weight_is_counted_once() -> None:
    """The report of `freeze` counts frozen and trainable parameters, a tied weight once."""
    model, _ = gpt2()
    total = sum(parameter.numel() for parameter in model.parameters())
    report = ts.model.freeze(model, "transformer.wte")
    assert report.num_frozen == model.transformer.wte.weight.numel()
    assert report.num_frozen + report.num_trainable == total
    assert report.num_trainable == sum(parameter.numel() for parameter in ts.model.trainable(model))


@pytest.mark.practice("P25")
def test_p25_frozen_batchnorm_keeps_its_statistics() -> None:
    """With only `requires_grad_(False)`, BatchNorm updates its statistics; with `freeze` it does not."""
    model, inputs = resnet()
    plain = copy.deepcopy(model)
    plain.layer1.requires_grad_(False)
    ts.model.freeze(model, "layer1")
    for each in (plain, model):
        before = state(each.layer1)
        each.train()(**inputs)
        moved = [
            key for key, tensor in each.layer1.state_dict().items() if not torch.equal(tensor, before[key])
        ]
        assert bool(moved) == (each is plain)
        assert all("running" in key or "num_batches" in key for key in moved)
    assert model.bn1.training and not model.layer1[0].bn1.training


@pytest.mark.practice("P25")
def test_p25_frozen_parameters_are_in_no_optimizer_group() -> None:
    """`trainable` and `decay_groups` give an optimizer only what learns."""
    model, _ = resnet()
    ts.model.freeze(model, "*")
    with pytest.raises(UsageError, match=r"no parameter of ResNet is trainable.*unfreeze\(model"):
        ts.model.trainable(model)
    ts.model.unfreeze(model, "fc")
    assert [id(p) for p in ts.model.trainable(model)] == [id(p) for p in model.fc.parameters()]
    groups = ts.decay_groups(model, weight_decay=0.1)
    assert [len(group["params"]) for group in groups] == [1, 1]


@pytest.mark.practice("P25")
def test_p25_check_is_content_with_freeze(tmp_path: Path) -> None:
    """`truestep check` reports statistics that change in a frozen part, and nothing after `freeze`."""
    script = """
import torch
from torch import nn
import truestep as ts
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
{freeze}
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
for _ in range(8):
    model.train()
    x = torch.randn(16, 4)
    optimizer.zero_grad()
    ((model(x) - x.sum(1, keepdim=True)) ** 2).mean().backward()
    optimizer.step()
"""
    found = {}
    for name, freeze in (
        ("plain", "model[:2].requires_grad_(False)"),
        ("held", "ts.model.freeze(model, ['0', '1'])"),
    ):
        path = tmp_path / f"{name}.py"
        path.write_text(script.format(freeze=freeze))
        gathered, told = judged(path)
        assert gathered.code == 0, gathered.output
        found[name] = {told_one.rule.meta.code for told_one in told.findings}
    assert "PAR10" in found["plain"] and "PAR10" not in found["held"]


def test_a_hold_survives_copies_pickles_and_loading_and_adds_no_keys() -> None:
    model, _ = resnet()
    keys = list(model.state_dict())
    ts.model.freeze(model, "layer1")
    assert list(model.state_dict()) == keys
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    copies = [
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(buffer, weights_only=False),
    ]
    for each in copies:
        each.train()
        assert not each.layer1[0].bn1.training and each.bn1.training
        assert each.layer1[0].bn1.train() is each.layer1[0].bn1
        ts.model.unfreeze(each, "layer1")
        assert each.layer1[0].bn1.training
    assert not model.layer1[0].bn1.training, "the copies have holds of their own"


def test_unfreeze_gives_back_the_mode_that_was_last_asked_for() -> None:
    model, _ = resnet()
    for mode in (True, False):
        ts.model.freeze(model, "layer1")
        model.train(mode)
        assert not model.layer1[0].bn1.training
        ts.model.unfreeze(model, "layer1")
        assert model.layer1[0].bn1.training is mode
        assert "train" not in vars(model.layer1[0].bn1)


def test_freezing_twice_and_unfreezing_leaves_nothing_behind() -> None:
    model, _ = resnet()
    ts.model.freeze(model, "*")
    assert ts.model.freeze(model, "*").changed == ()
    again = ts.model.unfreeze(model, "*")
    assert again.held == () and again.num_frozen == 0 and len(again.changed) == len(list(model.parameters()))
    assert not any("train" in vars(module) for module in model.modules())


def test_only_a_normalisation_that_is_frozen_whole_is_held() -> None:
    model, _ = resnet()
    assert ts.model.freeze(model, "*.bias").held == ()
    assert ts.model.freeze(model, "bn1.weight").held == ("bn1",)
    assert ts.model.unfreeze(model, "bn1.bias").held == ()


def test_batchnorm_without_weights_is_held_by_name_or_inside() -> None:
    model = nn.Sequential(
        nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, affine=False)), nn.BatchNorm1d(3, affine=False)
    )
    assert ts.model.freeze(model, "0").held == ("0.1",)
    assert ts.model.freeze(model, "1").held == ("0.1", "1")
    with pytest.raises(UsageError, match="a name like 'typo'"):
        ts.model.freeze(model, ["1", "typo"])


def test_a_tied_weight_is_frozen_under_all_its_names() -> None:
    model, _ = gpt2()
    ts.model.freeze(model, "lm_head")
    assert not model.transformer.wte.weight.requires_grad


def test_parameters_of_the_model_itself_are_frozen_too() -> None:
    class Positioned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.position = nn.Parameter(torch.zeros(1, 3))
            self.fc = nn.Linear(3, 1)

    model = Positioned()
    for child in model.children():  # the widely copied recipe misses it
        child.requires_grad_(False)
    assert model.position.requires_grad
    assert ts.model.freeze(model, "*").num_trainable == 0


def test_a_compiled_model_keeps_the_statistics_and_is_one_graph() -> None:
    model, inputs = resnet()
    ts.model.freeze(model, TRUNKS["resnet"])
    before = state(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    compiled.train()
    loss_of(compiled(**inputs)).backward()
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


def _train_wrapped() -> tuple[str, str, str]:
    model, inputs = resnet()
    ts.model.freeze(model, TRUNKS["resnet"])
    trunk = nn.ModuleList([model.conv1, model.bn1, model.layer1, model.layer2, model.layer3])
    before = digest_state(trunk.state_dict())
    wrapped = DistributedDataParallel(model)
    train(wrapped, inputs)
    return before, digest_state(trunk.state_dict()), digest_state(model.fc.state_dict())


@pytest.mark.slow
def test_a_frozen_part_keeps_its_bits_under_ddp() -> None:
    results = run_processes(_train_wrapped, size=2)
    assert all(before == after for before, after, _ in results)
    assert results[0] == results[1]


def _freeze_wrapped() -> str:
    wrapped = DistributedDataParallel(resnet()[0])
    try:
        ts.model.freeze(wrapped, "module.layer1")
    except UsageError as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_a_model_that_is_wrapped_already_is_refused() -> None:
    (message,) = run_processes(_freeze_wrapped, size=1)
    assert "Freeze or unfreeze the plain model before wrapping it." in message
