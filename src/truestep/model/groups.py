"""Optimizer groups: which parameters decay."""

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

_NORMALISATIONS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm)


def decay_groups(model: nn.Module, *, weight_decay: float) -> list[dict[str, Any]]:
    """Return two optimizer groups: weights that decay, and biases and normalisation weights that do not.

    Frozen parameters are left out, a tied weight is there once, and the order follows
    `named_parameters()`.

    >>> groups = decay_groups(nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3)), weight_decay=0.1)
    >>> [(len(group["params"]), group["weight_decay"]) for group in groups]
    [(1, 0.1), (3, 0.0)]
    """
    of_norms = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, _NORMALISATIONS)
        for parameter in module.parameters(recurse=False)
    }
    decaying: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            is_plain = parameter.ndim < 2 or id(parameter) in of_norms
            (others if is_plain else decaying).append(parameter)
    groups = [
        {"params": decaying, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
