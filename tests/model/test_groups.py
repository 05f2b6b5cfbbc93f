"""Decay groups."""

import pytest
import torch
from torch import nn

from tests.zoo import ZOO, gpt2
from truestep.errors import UsageError
from truestep.model import decay_groups


def test_biases_and_norms_do_not_decay_and_nothing_is_lost() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.LayerNorm((2, 2)), nn.Embedding(3, 4))
    decaying, others = decay_groups(model, weight_decay=0.1)
    assert [p.shape for p in decaying["params"]] == [(4, 4), (3, 4)]
    assert len(others["params"]) == 5 and others["weight_decay"] == 0.0


def test_frozen_are_left_out_and_tied_are_there_once() -> None:
    model = nn.ModuleDict(
        {"a": nn.Linear(4, 4, bias=False), "b": nn.Linear(4, 4, bias=False), "c": nn.Linear(4, 4)}
    )
    model["b"].weight = model["a"].weight
    model["c"].requires_grad_(False)
    (group,) = decay_groups(model, weight_decay=0.1)
    assert [id(p) for p in group["params"]] == [id(model["a"].weight)]
    torch.optim.AdamW(decay_groups(model, weight_decay=0.1))


@pytest.mark.practice("P50")
@pytest.mark.parametrize("name", ZOO)
def test_p50_biases_and_normalisation_do_not_decay(name: str) -> None:
    """`decay_groups` excludes biases and normalization weights from weight decay, and no others."""
    model, _ = ZOO[name]()
    decaying, others = decay_groups(model, weight_decay=0.1)
    assert others["weight_decay"] == 0.0
    names = {id(parameter): key for key, parameter in model.named_parameters()}
    grouped = [names[id(p)] for group in (decaying, others) for p in group["params"]]
    assert sorted(grouped) == sorted(names.values())
    plain = {names[id(p)] for p in others["params"]}
    words = ("norm", "bn", "ln_", "downsample.1")
    for key in names.values():
        owner, _, kind = key.rpartition(".")
        is_norm = any(word in owner.lower().split(".")[-1] for word in words) or owner.endswith(
            "downsample.1"
        )
        assert (key in plain) == (is_norm or kind.startswith("bias")), key


def test_norms_of_other_libraries_do_not_decay_whatever_their_shape() -> None:
    class ChannelNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 1, 1))

    model = nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), ChannelNorm())
    decaying, others = decay_groups(model, weight_decay=0.1)
    assert decaying["params"][0] is model[0].weight and others["params"][0] is model[1].weight


def test_embeddings_and_positions_decay_unless_exempt() -> None:
    model, _ = gpt2()
    decaying, _ = decay_groups(model, weight_decay=0.1)
    tables = {id(model.transformer.wte.weight), id(model.transformer.wpe.weight)}
    assert tables <= {id(p) for p in decaying["params"]}
    decaying, others = decay_groups(model, weight_decay=0.1, exempt=nn.Embedding)
    assert not tables & {id(p) for p in decaying["params"]} and tables <= {id(p) for p in others["params"]}
    with pytest.raises(UsageError, match="a name like 'pos_embed'"):
        decay_groups(model, weight_decay=0.1, exempt="pos_embed")
