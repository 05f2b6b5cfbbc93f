"""Filling a model that was built on the meta device, module by module."""

import random
from collections.abc import Callable

import numpy
import pytest
import torch
from torch import Tensor, nn

from truestep.base.bits import digest_state
from truestep.errors import UsageError
from truestep.model.deferred import Deferred, Init, plan


def filled(build: Callable[[], nn.Module], init: Init | None = None, seed: int = 7) -> nn.Module:
    with torch.device("meta"):
        model = build()
    plan(model, init=init).fill(seed=seed, number=0, keep=lambda _, full: full)
    assert not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    return model


def looked_at(build: Callable[[], nn.Module], init: Init | None = None) -> Deferred:
    with torch.device("meta"):
        model = build()
    return plan(model, init=init)


def test_a_seed_gives_a_model_and_another_seed_another() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.LSTM(4, 4), nn.Linear(4, 2).bfloat16())

    first = digest_state(filled(build).state_dict())
    assert digest_state(filled(build).state_dict()) == first
    assert digest_state(filled(build, seed=8).state_dict()) != first
    assert filled(build)[3].weight.dtype == torch.bfloat16
    assert torch.equal(filled(build)[1].running_var, torch.ones(4))


def test_a_module_draws_the_same_whatever_stands_beside_it() -> None:
    one = filled(lambda: nn.Sequential(nn.Linear(4, 4)))
    two = filled(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    assert torch.equal(one[0].weight, two[0].weight)
    assert not torch.equal(two[0].weight, two[1].weight)


def test_the_global_generators_stand_where_they_stood() -> None:
    def noise(module: nn.Module) -> None:
        for tensor in module.parameters(recurse=False):
            tensor.fill_(random.random() + numpy.random.random() + float(torch.rand(())))

    before = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist()
    first = filled(lambda: nn.Linear(4, 4), noise)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), numpy.random.get_state()[1].tolist()) == before[1:]
    assert torch.equal(filled(lambda: nn.Linear(4, 4), noise).weight, first.weight)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(4, 9)
        self.head.weight = self.embedding.weight


def test_a_tied_weight_stays_tied_and_is_filled_by_the_first_module_that_has_it() -> None:
    model = filled(Tied)
    assert model.head.weight is model.embedding.weight
    assert torch.equal(
        model.head.weight,
        filled(lambda: nn.ModuleDict({"embedding": nn.Embedding(9, 4)}))["embedding"].weight,
    )


class Unfilled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.inner = nn.Linear(3, 3)


class HalfFilled(Unfilled):
    def reset_parameters(self) -> None:
        self.scale[:2].fill_(1.0)


class WithTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(4), persistent=False)


def test_a_tensor_that_nobody_fills_is_named() -> None:
    with pytest.raises(UsageError, match=r"0\.scale has no values.*Unfilled has no reset_parameters\(\)"):
        looked_at(lambda: nn.Sequential(Unfilled()))
    with pytest.raises(UsageError, match=r"table has no values.*WithTable does not fill it"):
        looked_at(WithTable, init=lambda module: None)
    with pytest.raises(UsageError, match=r"HalfFilled left 1 of 3 values of scale unset"):
        filled(HalfFilled)


def test_init_fills_what_has_no_reset_parameters() -> None:
    def init(module: nn.Module) -> None:
        if isinstance(module, Unfilled):
            nn.init.trunc_normal_(module.scale, std=0.02)

    model = filled(lambda: nn.Sequential(Unfilled()), init)
    assert 0 < model[0].scale.std() < 0.1
    assert str(looked_at(Unfilled, init)).endswith("init")


class Fresh(WithTable):
    """Puts a new tensor there instead of filling the old one."""

    def reset_parameters(self) -> None:
        self.table = torch.arange(4)


def test_a_buffer_outside_the_state_may_be_made_anew() -> None:
    model = filled(Fresh)
    assert model.table.tolist() == [0, 1, 2, 3]
    assert not model.state_dict()


class Deep(nn.Module):
    """Fills one of its children once more, as attention does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.last.weight, std=1e-6)


def test_what_a_module_fills_below_it_is_made_together_and_keeps_its_order() -> None:
    deferred = looked_at(lambda: nn.Sequential(Deep(), nn.Linear(4, 4)))
    assert [[filler.name for filler in portion.fillers] for portion in deferred.portions] == [
        ["0.last", "0"],
        ["0.first"],
        ["1"],
    ]
    model = filled(Deep)
    assert model.last.weight.std() < 1e-5 < model.first.weight.std()
    assert filled(lambda: nn.TransformerEncoderLayer(8, 2)).self_attn.out_proj.bias.tolist() == [0.0] * 8


class Reaching(nn.Module):
    def __init__(self, other: nn.Linear) -> None:
        super().__init__()
        self.own = nn.Linear(2, 2)
        self._other = [other]

    def reset_parameters(self) -> None:
        nn.init.zeros_(self._other[0].weight)


def test_a_module_that_fills_others_than_those_below_it_is_refused() -> None:
    def build() -> nn.Module:
        first = nn.Linear(2, 2)
        return nn.Sequential(first, Reaching(first))

    with pytest.raises(UsageError, match=r"the initialisation of 1 fills 0\.weight, which is not below it"):
        looked_at(build)


def test_what_has_values_keeps_them() -> None:
    def build() -> nn.Module:
        model = nn.BatchNorm1d(3)
        model.running_mean = torch.full((3,), 5.0, device="cpu")
        return model

    model = filled(build)
    assert model.running_mean.tolist() == [5.0] * 3
    assert model.weight.tolist() == [1.0] * 3


def test_a_model_of_hugging_face_is_filled_as_its_own_function_says() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=61, n_positions=16, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    with torch.device("meta"):
        model = GPT2LMHeadModel(config)
    plan(model, init=model._init_weights).fill(seed=7, number=0, keep=lambda _, full: full)
    assert model.lm_head.weight is model.transformer.wte.weight
    assert spread(model.transformer.wte.weight) == pytest.approx(0.02, rel=0.1)
    attention = model.transformer.h[0].attn
    assert spread(attention.c_attn.weight) == pytest.approx(0.02, rel=0.1)
    # What attention does to its child after that: divided by the root of twice the number of layers.
    assert spread(attention.c_proj.weight) == pytest.approx(0.01, rel=0.1)


def spread(tensor: Tensor) -> float:
    return float(tensor.detach().std())
