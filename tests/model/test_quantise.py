"""Quantised copies: what is taken, what is left, and what it costs in accuracy, size and speed."""

import io
import logging
import math
import subprocess
import sys

import numpy
import pytest
import torch
from torch import nn

from tests.model.digits import cnn, held_out, mlp
from tests.zoo import ZOO, bert, gpt2, lstm
from truestep.errors import UsageError
from truestep.model import compare, quantise, summary
from truestep.model.compare import _around_median

SCHEMES = ["int8-weights", "int8-dynamic"]
PLAIN = [(torch.ones(3, 4), torch.zeros(3, dtype=torch.long))]


@pytest.mark.practice("P72")
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("make", [mlp, cnn])
def test_p72_quantised_digits_keep_their_accuracy(make, scheme) -> None:
    """A quantized digit classifier is compared on the same images: accuracy with an interval, size, speed."""
    model = make()
    quantised = quantise(model, scheme=scheme)
    found = compare(model, quantised, batches=held_out(), repeats=10)
    assert found.paired.num_samples == 797 and found.paired.accuracies[0] > 0.95
    low, high = found.paired.interval
    assert low <= found.paired.gain <= high and low > -0.02
    assert found.agreement > 0.99
    assert found.size_bytes == quantised.size_bytes
    assert found.saved_bytes[1] < found.saved_bytes[0]
    assert "accuracy" in str(found) and "as fast" in found.verdict


@pytest.mark.practice("P72")
@pytest.mark.parametrize("scheme", SCHEMES)
def test_p72_a_quantised_bert_is_smaller_and_nearly_the_same(scheme) -> None:
    """The linear layers of a BERT are quantized, other layers are listed, and outputs stay close."""
    model, batch = bert()
    quantised = quantise(model, scheme=scheme)
    assert len(quantised.layers) == 2 * 6 + 2
    assert quantised.left["bert.embeddings.word_embeddings"] == "Embedding is not quantised"
    linear = sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear))
    rows = sum(m.out_features for m in model.modules() if isinstance(m, nn.Linear))
    before, after = quantised.size_bytes
    # Four bytes become one, and each row gets a scale of four bytes and a zero of one.
    assert before - after == 3 * linear - 5 * rows
    found = compare(model, quantised, batches=[batch], repeats=2)
    assert found.size_bytes == (before, after)
    with torch.no_grad():
        exact, near = model.eval()(**batch).logits, quantised.model(**batch).logits
    # Eight bits: each product is off by up to 1/254 of its row's largest weight; random weights even it out.
    assert 0 < (exact - near).abs().max() < 0.02


def test_weights_are_rounded_to_the_nearest_of_their_row() -> None:
    model = nn.Sequential(nn.Linear(64, 32))
    copied = quantise(model).model
    weight, found = model[0].weight, copied[0].weight.dequantize()
    step = weight.abs().amax(1, keepdim=True) / 127
    assert ((weight - found).abs() <= 0.5001 * step).all()  # half a step, and the scale's own rounding


@pytest.mark.parametrize("name", ["resnet", "lstm", "bert", "gpt2", "t5"])
def test_the_model_itself_is_not_changed(name: str) -> None:
    model, batch = ZOO[name]()
    before = {
        key: (value, value.clone(), value._version) for key, value in model.state_dict(keep_vars=True).items()
    }
    if name == "gpt2":
        with pytest.raises(
            UsageError, match=r"no layer can be quantised: .*lm_head \(its weight is shared\)"
        ):
            quantise(model)
    else:
        quantised = quantise(model)
        assert not any(module.training for module in quantised.model.modules())
        assert {*quantised.layers}.isdisjoint(quantised.left)
        own = {name for name, module in model.named_modules() if [*module.parameters(recurse=False)]}
        assert {*quantised.layers} | {*quantised.left} == own
        with torch.no_grad():
            quantised.model(**batch)
    for key, value in model.state_dict(keep_vars=True).items():
        kept, copy, version = before[key]
        assert value is kept and torch.equal(value, copy) and value._version == version
    assert all(module.training for module in model.modules())


def test_tied_and_other_layers_are_left_and_told() -> None:
    model, _ = gpt2()
    model.extra = nn.Linear(32, 8)
    quantised = quantise(model)
    assert quantised.layers == ("extra",)
    assert quantised.left["lm_head"] == "its weight is shared"
    assert quantised.left["transformer.h.0.attn.c_attn"] == "Conv1D is not quantised"
    assert [str(item) for item in summary(quantised.model).shared] == [
        "lm_head.weight is transformer.wte.weight"
    ]
    assert "unchanged (its weight is shared): lm_head" in str(quantised)


def test_layers_are_chosen_by_pattern() -> None:
    model, _ = bert()
    quantised = quantise(model, "bert.encoder.*.dense")
    assert all(name.startswith("bert.encoder") for name in quantised.layers)
    assert quantised.left["classifier"] == "not chosen"
    with pytest.raises(UsageError, match=r"nearest names are .*encoder"):
        quantise(model, "bert.encodr.*")
    with pytest.raises(UsageError, match=r"lstm \(LSTM is not quantised\)"):
        quantise(lstm()[0], "lstm")
    with pytest.raises(UsageError, match="scheme is 'int4'"):
        quantise(model, scheme="int4")


def test_attention_of_torch_still_runs() -> None:
    layer = nn.TransformerEncoderLayer(32, 4, dim_feedforward=64, batch_first=True).eval()
    quantised = quantise(layer)
    assert quantised.layers == ("linear1", "linear2")
    x = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert (quantised.model(x) - layer(x)).abs().max() < 0.05


def test_a_worse_model_is_told_to_be_worse() -> None:
    model, other = mlp(), mlp()
    with torch.no_grad():
        other[3].weight += torch.randn(10, 256, generator=torch.Generator().manual_seed(0)) * 0.3
    found = compare(model, other, batches=held_out(), repeats=2)
    assert found.paired.interval[1] < 0
    assert "The second is less accurate, by" in found.verdict
    assert "It has 100% of the size" in found.verdict


def test_the_same_model_is_told_to_be_the_same() -> None:
    model = mlp()
    found = compare(model, model, batches=held_out(), repeats=40)
    assert found.paired.gain == 0.0 and found.agreement == 1.0
    assert "No change of accuracy is shown; a loss of up to 0.48 points is possible" in found.verdict
    assert 0.5 < found.speed < 2  # the same code; the machine may be busy
    assert found.size_bytes[0] == sum(parameter.nbytes for parameter in model.parameters())


def test_a_slower_model_is_told_to_be_slower() -> None:
    class Slow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, x):
            for _ in range(20):
                y = self.inner(x)
            return y

    found = compare(mlp(), Slow(), batches=held_out(), repeats=20)
    assert found.speed < 0.5 and "It is slower on this machine (cpu, 1 thread)" in found.verdict
    assert "It is faster on this machine" in compare(Slow(), mlp(), batches=held_out(), repeats=20).verdict


def test_the_interval_for_the_median_speed_holds_it() -> None:
    ratios = numpy.random.default_rng(0).lognormal(0.0, 1.0, size=(2000, 30))  # skewed, and its median is 1
    ends = [_around_median(sorted(row), 0.95) for row in ratios.tolist()]
    covered = sum(low <= 1 <= high for low, high in ends) / 2000
    assert 0.93 <= covered <= 0.98  # ranks are whole numbers: 95.7 % for 30 values


def test_too_few_timings_give_no_interval_and_no_more_values_than_needed_are_taken() -> None:
    values = [float(number) for number in range(6)]
    assert _around_median(values[:5], 0.95) == (0.0, math.inf)  # their range holds it in 93.75 %
    assert _around_median(values, 0.95) == (0.0, 5.0)  # 96.9 %
    assert _around_median(values, 0.75) == (1.0, 4.0)  # 78.1 %
    ends = _around_median([float(number) for number in range(1, 101)], 0.95)
    assert ends == (40.0, 61.0)  # as in tables of the sign test
    found = compare(mlp(), mlp(), batches=held_out(), repeats=2)
    assert "No change of speed is shown on this machine (cpu, 1 thread): too few repeats" in found.verdict


def test_a_first_model_without_parameters_has_no_size_to_compare_with() -> None:
    found = compare(nn.Flatten(), nn.Sequential(nn.Flatten(), nn.Linear(4, 4)), batches=PLAIN, repeats=2)
    assert "It has 80 bytes, the first none." in str(found)


def test_modes_and_generators_are_left_alone() -> None:
    model, quantised = cnn(), quantise(cnn())
    state = torch.get_rng_state()
    images, targets = held_out()[0]
    loader = torch.utils.data.DataLoader([*zip(images, targets, strict=True)], batch_size=64, shuffle=True)
    compare(model, quantised, batches=loader, repeats=2)
    assert all(module.training for module in model.modules())
    assert torch.equal(state, torch.get_rng_state())
    with pytest.raises(UsageError, match="repeats is 1"):
        compare(model, quantised, batches=loader, repeats=1)


def test_a_saved_copy_loads_without_running_code() -> None:
    quantised = quantise(mlp())
    file = io.BytesIO()
    torch.save(quantised.model.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    assert torch.equal(state["1.weight"].qdata, quantised.model[1].weight.qdata)


CODE = """
from torch import nn
from truestep.model import quantise
quantise(nn.Linear(64, 64))
import logging
logging.getLogger("torchao").warning("a real remark")
"""


def test_importing_torchao_makes_no_noise_and_hides_no_remark() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "" and done.stderr.strip() == "a real remark"
    assert not logging.getLogger("torchao").filters


def test_without_torchao_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(UsageError, match=r"pip install 'truestep\[quantise\]'"):
        quantise(nn.Linear(64, 64))
