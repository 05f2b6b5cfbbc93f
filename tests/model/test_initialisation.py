"""Initialisation by scheme."""

import math
from typing import Any

import pytest
import torch
from torch import nn

import truestep as ts
from tests.zoo import ZOO, bert, gpt2, lstm, resnet, t5
from truestep.bits import digest_state
from truestep.errors import UsageError

SCHEMES = ("kaiming", "xavier", "orthogonal", "normal")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.practice("P28")
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ZOO)
def test_p28_every_parameter_is_filled_by_the_scheme_or_named_as_left(name: str, scheme: Any) -> None:
    """`initialise` fills every parameter by layer type, with the same bits for the same generator."""
    model, _ = ZOO[name]()
    state = torch.get_rng_state()
    done = ts.model.initialise(model, scheme, generator=generator())
    first = digest_state(model.state_dict())
    assert torch.equal(torch.get_rng_state(), state)
    assert done.left == ()
    assert [entry[0] for entry in done.changed] == [key for key, _ in model.named_parameters()]
    ts.model.initialise(model, scheme, generator=generator())
    assert digest_state(model.state_dict()) == first
    ts.model.initialise(model, scheme, generator=generator(1))
    assert digest_state(model.state_dict()) != first


def test_linear_layers_get_exactly_what_torch_draws() -> None:
    model = nn.Sequential(nn.Linear(30, 20), nn.Conv2d(3, 8, 3))
    expected = [torch.empty(20, 30), torch.empty(8, 3, 3, 3)]
    draws = generator()
    for tensor in expected:
        nn.init.kaiming_normal_(tensor, nonlinearity="relu", generator=draws)
    ts.model.initialise(model, "kaiming", generator=generator())
    assert torch.equal(model[0].weight, expected[0]) and torch.equal(model[1].weight, expected[1])
    assert not model[0].bias.any() and not model[1].bias.any()


def test_transposed_weights_are_scaled_by_their_true_inputs() -> None:
    model, _ = gpt2()
    ts.model.initialise(model, "kaiming", generator=generator())
    weight = model.transformer.h[0].mlp.c_fc.weight  # 32 inputs, 128 outputs, stored as (32, 128)
    # 4096 draws: the standard deviation of their standard deviation is 1.1 percent.
    assert float(weight.detach().std()) == pytest.approx(math.sqrt(2 / 32), rel=0.05)
    up = nn.ConvTranspose2d(32, 8, 3)
    ts.model.initialise(up, "kaiming", generator=generator())
    assert float(up.weight.detach().std()) == pytest.approx(math.sqrt(2 / (32 * 9)), rel=0.06)


def test_orthogonal_is_orthogonal_for_each_gate_and_each_projection() -> None:
    model = nn.ModuleDict({"gru": nn.GRU(6, 6), "attention": nn.MultiheadAttention(6, 2)})
    ts.model.initialise(model, "orthogonal", generator=generator())
    for weight in (model["gru"].weight_hh_l0, model["attention"].in_proj_weight):
        for part in weight.detach().chunk(3):
            # Rounding of six products in single precision.
            torch.testing.assert_close(part @ part.T, torch.eye(6), atol=1e-5, rtol=0)


def test_recurrent_biases_open_the_forget_gate_once() -> None:
    model, _ = lstm()
    ts.model.initialise(model, "xavier", generator=generator())
    added = model.lstm.bias_ih_l0 + model.lstm.bias_hh_l0
    assert [float(gate.mean()) for gate in added.detach().chunk(4)] == [0.0, 1.0, 0.0, 0.0]
    fed_back = model.lstm.weight_hh_l0.detach().chunk(4)[0]
    torch.testing.assert_close(
        fed_back @ fed_back.T, torch.eye(32), atol=1e-5, rtol=0
    )  # rounding, 32 products


def test_the_projection_of_an_lstm_has_no_gates() -> None:
    model = nn.LSTM(8, 32, proj_size=16)
    ts.model.initialise(model, "orthogonal", generator=generator())
    whole = model.weight_hr_l0.detach()
    torch.testing.assert_close(whole @ whole.T, torch.eye(16), atol=1e-5, rtol=0)  # rounding, 32 products


def test_groups_of_a_transposed_convolution_see_only_their_own_inputs() -> None:
    layer = nn.ConvTranspose2d(64, 64, 3, groups=16)
    ts.model.initialise(layer, "kaiming", generator=generator())
    # 2304 draws: 1.5 percent.
    assert float(layer.weight.detach().std()) == pytest.approx(math.sqrt(2 / (4 * 9)), rel=0.06)


def test_embeddings_are_tables_with_a_padding_row_of_zeros() -> None:
    model, _ = bert()
    ts.model.initialise(model, "kaiming", generator=generator())
    table = model.bert.embeddings.word_embeddings.weight.detach()
    assert not table[0].any()
    # 1888 draws: 1.6 percent.
    assert float(table[1:].std()) == pytest.approx(1 / math.sqrt(32), rel=0.06)


@pytest.mark.parametrize(("build", "name"), [(gpt2, "transformer.wte.weight"), (t5, "shared.weight")])
def test_a_tied_weight_is_filled_once_as_an_embedding(build: Any, name: str) -> None:
    model, _ = build()
    done = dict(ts.model.initialise(model, "kaiming", generator=generator()).changed)
    assert done[name] == "normal, 1/sqrt(width)" and "lm_head.weight" not in done
    assert model.lm_head.weight is model.get_parameter(name)
    # 1920 draws: 1.6 percent.
    assert float(model.lm_head.weight.detach().std()) == pytest.approx(1 / math.sqrt(32), rel=0.06)


def test_normalisation_becomes_neutral_with_fresh_statistics() -> None:
    model, inputs = resnet()
    model(**inputs)
    with torch.no_grad():
        model.bn1.weight.fill_(3.0)
    ts.model.initialise(model, "kaiming")
    assert bool((model.bn1.weight == 1).all()) and not model.bn1.running_mean.any()
    assert int(model.bn1.num_batches_tracked) == 0


def test_a_norm_without_weights_gets_fresh_statistics_unless_it_is_held() -> None:
    model = nn.Sequential(*(nn.BatchNorm1d(3, affine=False) for _ in range(2)))
    model(torch.randn(4, 3) + 5)
    ts.model.freeze(model, "1")
    ts.model.initialise(model, "kaiming")
    assert not model[0].running_mean.any() and model[1].running_mean.any()


def test_a_norm_that_returns_more_than_a_tensor_is_left_and_told() -> None:
    class TwofoldNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((4,), 5.0))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
            return x * self.weight, None

    done = ts.model.initialise(nn.Sequential(TwofoldNorm()), "kaiming")
    assert done.left == (("0.weight", "a layer this does not know"),)


def test_a_norm_that_multiplies_by_one_plus_its_weight_becomes_zero() -> None:
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    model = nn.Sequential(GemmaRMSNorm(16), LlamaRMSNorm(16))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(5.0)
    ts.model.initialise(model, "normal")
    assert not model[0].weight.any() and bool((model[1].weight == 1).all())


def test_frozen_and_unknown_parameters_are_left_and_told() -> None:
    class Positioned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.position = nn.Parameter(torch.full((1, 3), 7.0))
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

    model = Positioned()
    ts.model.freeze(model, "a")
    before = model.a.weight.clone()
    done = ts.model.initialise(model, "xavier")
    assert dict(done.left) == {
        "position": "a layer this does not know",
        "a.weight": "frozen",
        "a.bias": "frozen",
    }
    assert torch.equal(model.a.weight, before) and bool((model.position == 7).all())
    assert "unchanged (frozen): a.weight, a.bias" in str(done)


def test_a_mapping_fills_only_what_it_names_and_the_later_entry_counts() -> None:
    model, _ = resnet()
    before = model.bn1.weight.clone(), model.layer1[0].conv1.weight.clone()
    done = ts.model.initialise(
        model,
        {"layer2.*": "xavier", nn.Linear: nn.init.ones_, "fc.weight": nn.init.zeros_},
        generator=generator(),
    )
    changed = dict(done.changed)
    assert changed["fc.weight"] == "zeros_" and not model.fc.weight.any()
    assert "fc.bias" not in changed, "a function for a type is given its weights"
    assert changed["layer2.0.conv1.weight"] == "xavier" and changed["layer2.0.bn1.weight"] == "1"
    assert torch.equal(model.bn1.weight, before[0]) and torch.equal(model.layer1[0].conv1.weight, before[1])


@pytest.mark.parametrize("scheme", ["he", {"fc": "he"}])
def test_an_unknown_scheme_is_refused(scheme: Any) -> None:
    with pytest.raises(UsageError, match=r"scheme is 'he'\. Pass one of kaiming, xavier, orthogonal, normal"):
        ts.model.initialise(resnet()[0], scheme)


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="a name like 'head'"):
        ts.model.initialise(resnet()[0], {"head": "xavier"})
