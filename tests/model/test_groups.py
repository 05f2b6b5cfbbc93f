"""Decay groups."""

import torch
from torch import nn

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
