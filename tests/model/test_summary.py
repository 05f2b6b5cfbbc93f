"""The summary of a model: counts by hand, against torchinfo and torch's counter, and without a trace."""

import random
from typing import Any

import numpy
import pytest
import torch
import torchinfo
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tests.gathering import run_text
from tests.zoo import ZOO, gpt2, loss_of, lstm, resnet, t5
from truestep.check import evaluate_rules
from truestep.errors import UsageError
from truestep.model import summary
from truestep.rules import find_rules

# By hand. ResNet: convolutions 8*27 + 4*8*8*9 + (8*16 + 3*16*16)*9 + (16*32 + 3*32*32)*9 + 8*16 + 16*32, two
# per channel of the 15 BatchNorms, 33*10 for the last layer. LSTM: 50*16, 4*32*(16+32+2) + 4*32*(32+32+2) and
# 33*4. GPT-2: 60*32 once, 32*32, two blocks of 12*32*32 and 13*32 for norms and biases, the last norm.
BY_HAND = {
    "resnet": 216 + 2304 + 8064 + 32256 + 640 + 2 * (5 * 8 + 5 * 16 + 5 * 32) + 330,
    "lstm": 800 + 6400 + 8448 + 132,
    "gpt2": 60 * 32 + 32 * 32 + 2 * (12 * 32 * 32 + 13 * 32) + 64,
}


@pytest.mark.practice("P27")
@pytest.mark.parametrize("name", ZOO)
def test_p27_parameters_are_counted_once(name: str) -> None:
    """Parameters are counted as torch holds them, a tied weight once; torchinfo counts it under each name."""
    model, _ = ZOO[name]()
    found = summary(model)
    assert found.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert found.parameters == BY_HAND.get(name, found.parameters)
    other = torchinfo.summary(model, verbose=0)
    tied = sum(model.get_parameter(shared.name).numel() for shared in found.shared)
    assert other.total_params == found.parameters + tied
    assert (tied > 0) == (name in ("gpt2", "t5"))


@pytest.mark.practice("P27")
def test_p27_trainable_is_told_from_frozen() -> None:
    """Frozen parameters are in the total and not in the trainable ones, in all and for each module."""
    model, _ = resnet()
    model.layer1.requires_grad_(False)
    found = summary(model)
    assert found.parameters - found.trainable == 2368 == found["layer1"].parameters
    assert found["layer1"].trainable == 0
    assert "frozen 2,368" in str(found)
    assert "trainable" in str(found).splitlines()[0]


@pytest.mark.parametrize("name", ZOO)
def test_a_module_counts_what_is_below_it_and_own_numbers_add_up(name: str) -> None:
    model, _ = ZOO[name]()
    found = summary(model)
    for row in found.modules:
        module = model.get_submodule(row.name)
        assert row.parameters == sum(parameter.numel() for parameter in module.parameters())
        assert row.buffers == sum(buffer.numel() for buffer in module.buffers())
        assert row.kind == type(module).__name__
    firsts = [row for row in found.modules if row.same_as is None]
    shared = sum(model.get_parameter(item.name).numel() for item in found.shared)
    again = sum(row.own_parameters for row in found.modules if row.same_as is not None)
    assert sum(row.own_parameters for row in firsts) == found.parameters + shared - again


@pytest.mark.practice("P29")
def test_p29_tied_weights_are_told_by_name() -> None:
    """The summary shows which weights are tied, and that a copy with equal numbers is not."""
    model, _ = gpt2()
    found = summary(model)
    assert [str(item) for item in found.shared] == ["lm_head.weight is transformer.wte.weight"]
    untied, _ = gpt2()
    untied.lm_head.weight = nn.Parameter(untied.lm_head.weight.detach().clone())
    assert summary(untied).shared == ()
    assert summary(untied).parameters == found.parameters + 60 * 32


def test_a_weight_shared_through_its_data_is_told_to_be_two_parameters() -> None:
    model = nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 6, bias=False))
    model[1].weight.data = model[0].weight.data
    found = summary(model)
    assert [str(item) for item in found.shared] == [
        "1.weight lies in the memory of 0.weight, but is another parameter"
    ]
    assert found.parameters == 24 and found.size_bytes == 96


def test_a_module_with_several_names_is_told_to_be_one() -> None:
    found = summary(t5()[0])
    names = [shared.name for shared in found.shared]
    assert names == ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"]
    layer = nn.Linear(2, 2)
    found = summary(nn.Sequential(layer, nn.ReLU(), layer), torch.ones(1, 2))
    assert found["2"].same_as == "0" and found.parameters == 6
    assert found.flops == 2 * (2 * 2 * 2) == found["0"].flops
    assert "is 0" in str(found)


UNTIED = """
import torch
from torch import nn

torch.manual_seed(0)
class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(20, 8)
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, x):
        return self.head(torch.tanh(self.body(self.wte(x))))

model = Words()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
UNTYING
for step in range(6):
    x = torch.randint(0, 20, (4, 5))
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.practice("P29")
def test_p29_an_untied_copy_is_found_by_check() -> None:
    """`truestep check` finds a tied weight that was replaced by a copy: it is in no optimizer (PAR04)."""
    copied = "model.head.weight = nn.Parameter(model.wte.weight.detach().clone())"
    told = {
        text: {
            item.rule.meta.code
            for item in evaluate_rules(
                find_rules(), run_text(UNTIED.replace("UNTYING", text)).evidence
            ).findings
        }
        for text in (copied, "")
    }
    assert "PAR04" in told[copied]
    assert "PAR04" not in told[""]


MODES = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters())
x, y = torch.randn(96, 6), torch.randint(0, 2, (96,))
for epoch in range(3):
    model.train()
    for at in range(0, 64, 16):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[at : at + 16]), y[at : at + 16]).backward()
        optimizer.step()
    SWITCH
    with torch.no_grad():
        hits = (model(x[64:]).argmax(1) == y[64:]).sum().item()
"""


@pytest.mark.practice("P30")
def test_p30_a_model_evaluated_in_train_mode_is_found_by_check() -> None:
    """`truestep check` finds an evaluation in train mode (MODE01), and is silent once `eval()` is called."""
    told = [
        {
            item.rule.meta.code
            for item in evaluate_rules(
                find_rules(), run_text(MODES.replace("SWITCH", text)).evidence
            ).findings
        }
        for text in ("pass", "model.eval()")
    ]
    assert "MODE01" in told[0] and "MODE01" not in told[1]


def _torch_counts(model: nn.Module, inputs: dict[str, Any], *, backward: bool = False) -> int:
    with FlopCounterMode(display=False) as counter:
        output = model(**inputs)
        if backward:
            loss_of(output).backward()
    return counter.get_total_flops()


def test_flops_agree_with_torch_and_hand_counts_on_a_cnn() -> None:
    model, inputs = resnet()
    found = summary(model, **inputs, backward=True)
    assert found.flops == _torch_counts(model, inputs)
    assert found.flops + found.backward_flops == _torch_counts(model, inputs, backward=True)
    assert found["conv1"].flops == 2 * (4 * 16 * 16) * 8 * (3 * 3 * 3)
    assert found["layer2.0.conv1"].flops == 2 * (4 * 8 * 8) * 16 * (8 * 3 * 3)
    assert found["fc"].flops == 2 * 4 * 32 * 10
    # The images need no gradient: of the first layer only the weight's is computed, of others both.
    assert found["conv1"].backward_flops == found["conv1"].flops
    assert found["fc"].backward_flops == 2 * found["fc"].flops
    parts = ("conv1", "layer1", "layer2", "layer3", "fc")
    assert sum(found[name].flops for name in parts) == found.flops
    assert sum(found[name].backward_flops for name in parts) == found.backward_flops


def test_an_lstm_is_counted_where_torch_counts_nothing() -> None:
    model, inputs = lstm()
    found = summary(model, **inputs, backward=True)
    by_hand = 2 * (4 * 12) * (4 * 32) * ((16 + 32) + (32 + 32))
    assert found["lstm"].flops == by_hand
    assert found["lstm"].backward_flops == 2 * by_hand
    assert _torch_counts(model, inputs) == found["fc"].flops  # torch leaves the whole LSTM out


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5"])
def test_attention_is_counted_where_torch_counts_nothing(name: str) -> None:
    model, inputs = ZOO[name]()
    found = summary(model, **inputs)
    # In train mode the attention is written out for its dropout, and torch counts its two products.
    assert found.flops == _torch_counts(model, inputs)
    model.eval()
    pairs = 10 * 10 + 6 * 6 + 6 * 10 if name == "t5" else 10 * 10  # of positions
    attention = 2 * 2 * (2 * 4 * 4 * pairs * 8)  # layers, products; batch, heads and their width
    with torch.no_grad():
        # From 2.15 on torch counts the fused attention of the CPU too.
        assert _torch_counts(model, inputs) in (found.flops - attention, found.flops)


def test_what_is_not_counted_is_told_instead_of_zero() -> None:
    model, inputs = resnet()
    found = summary(model, **inputs)
    assert found["bn1"].flops is None
    assert found.not_counted["relu"] == 13 and found.not_counted["add"] == 6
    text = str(found)
    assert "not counted" in next(line for line in text.splitlines() if line.startswith("bn1 "))
    assert "relu x13" in text
    bilinear = summary(nn.Bilinear(3, 4, 5), torch.ones(2, 3), torch.ones(2, 4))
    assert bilinear[""].flops is None and "_trilinear" in bilinear.not_counted


def test_the_fused_encoder_layer_is_taken_apart_and_counted() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True).eval()
    found = summary(layer, torch.ones(2, 3, 8))
    products = 2 * 6 * (8 * 24 + 8 * 8 + 2 * 8 * 16)
    assert found.flops == products + 2 * (2 * 2 * 2 * 3 * 3 * 4)
    assert torch.backends.mha.get_fastpath_enabled()


def test_shapes_are_those_of_the_call_and_uncalled_modules_are_told() -> None:
    model, inputs = resnet()
    found = summary(model, inputs["images"])
    assert found["layer3"].outputs == ((4, 32, 4, 4),) and found[""].outputs == ((4, 10),)
    model, inputs = t5()
    found = summary(model, **inputs)
    assert found["decoder"].outputs[0] == (4, 6, 32)
    assert found["encoder.block"].outputs is None
    assert "not called" in str(found)


class Restless(nn.Module):
    """Changes what it can in its pass forward: a buffer, its input, and three generators."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor, fail: bool = False) -> Tensor:
        self.count += 1
        self.register_buffer("late", torch.ones(2))
        x.relu_()
        x = x + torch.rand(3) + random.random() + float(numpy.random.rand())
        if fail:
            raise RuntimeError("on purpose")
        return self.norm(self.linear(x))


@pytest.mark.parametrize("fail", [False, True])
@pytest.mark.parametrize("backward", [False, True])
def test_summary_leaves_no_trace(fail: bool, backward: bool) -> None:
    model = Restless()
    model.norm.eval()
    x = torch.tensor([[-1.0, 2.0, 3.0], [1.0, -2.0, 0.5]])
    model.linear.weight.grad = torch.ones(3, 3)
    before = {
        name: (value, value.clone(), value._version)
        for name, value in model.state_dict(keep_vars=True).items()
    }
    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].copy()
    if fail:
        with pytest.raises(RuntimeError, match="on purpose"):
            summary(model, x, fail=True, backward=backward)
    else:
        summary(model, x, backward=backward)
    after = model.state_dict(keep_vars=True)
    assert list(after) == list(before)
    for name, (value, copy, version) in before.items():
        assert after[name] is value and torch.equal(value, copy) and value._version == version
    assert [module.training for module in model.modules()] == [True, True, False]
    assert torch.equal(model.linear.weight.grad, torch.ones(3, 3)) and model.linear.bias.grad is None
    assert x[0, 0] == -1.0
    assert torch.equal(states[0], torch.get_rng_state()) and states[1] == random.getstate()
    assert (states[2] == numpy.random.get_state()[1]).all()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not nn.modules.module._global_forward_hooks and not nn.modules.module._global_forward_pre_hooks
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("name", ZOO)
def test_summary_changes_no_bit_of_the_zoo(name: str) -> None:
    model, inputs = ZOO[name]()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    summary(model, **inputs, backward=True)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.practice("P36")
def test_p36_modules_are_walked_indexed_and_named() -> None:
    """A module is found by its dotted name in summary and model; `model(**batch)` is a call by keywords."""
    model, batch = gpt2()
    found = summary(model, **batch)
    assert [row.name for row in found.at_depth(1).modules] == ["", "transformer", "lm_head"]
    block = model.get_submodule("transformer.h.1")
    assert block is model.transformer.h[1]
    assert found["transformer.h.1"].parameters == sum(parameter.numel() for parameter in block.parameters())
    model.eval()
    by_hand = model(input_ids=batch["input_ids"], labels=batch["labels"])
    assert torch.equal(model(**batch).loss, by_hand.loss)
    with pytest.raises(UsageError, match=r"no module 'transformer.h.7'. The nearest are transformer.h"):
        found["transformer.h.7"]


def test_a_lazy_module_and_a_missing_batch_are_refused() -> None:
    with pytest.raises(UsageError, match=r"0\.weight has no shape yet"):
        summary(nn.Sequential(nn.LazyLinear(3)))
    with pytest.raises(UsageError, match="backward=True needs a batch"):
        summary(nn.Linear(2, 2), backward=True)
    with pytest.raises(UsageError, match="does not depend on a parameter that requires a gradient"):
        summary(nn.Linear(2, 2).requires_grad_(False), torch.ones(1, 2), backward=True)


def test_a_model_on_the_meta_device_is_counted() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4096, 4096), nn.Linear(4096, 4096))
    found = summary(model, torch.empty(2, 4096, device="meta"))
    assert found.parameters == 2 * 4097 * 4096 and found.flops == 2 * 2 * 2 * 4096 * 4096
