"""Optimizer groups: which parameters decay, and what counts as normalisation."""

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from truestep.model.names import What, select

_NORMALISATIONS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm)


def decay_groups(
    model: nn.Module, *, weight_decay: float, exempt: What | None = None
) -> list[dict[str, Any]]:
    """Return two optimizer groups: weights that decay, and biases and normalization weights that do not.

    Frozen parameters are left out, a tied weight is there once, and the order follows `named_parameters()`.
    Everything else with two dimensions or more decays, embeddings and positions too; `exempt` takes name
    patterns or types (`nn.Embedding`, "*.pos_embed") whose parameters shall not.

    >>> groups = decay_groups(nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3)), weight_decay=0.1)
    >>> [(len(group["params"]), group["weight_decay"]) for group in groups]
    [(1, 0.1), (3, 0.0)]
    """
    spared = {
        id(parameter)
        for module in model.modules()
        if is_normalisation(module)
        for parameter in module.parameters(recurse=False)
    }
    if exempt is not None:
        spared |= {id(parameter) for parameter in select(model, exempt, kind="parameters").values()}
    decaying: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            is_plain = parameter.ndim < 2 or id(parameter) in spared
            (others if is_plain else decaying).append(parameter)
    groups = [
        {"params": decaying, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def is_normalisation(module: nn.Module) -> bool:
    """Whether a module normalises: torch's own layers, and single layers called so (`LlamaRMSNorm`).

    >>> is_normalisation(nn.LayerNorm(2)), is_normalisation(nn.Linear(2, 2))
    (True, False)
    """
    is_called_so = type(module).__name__.lower().endswith(("norm", "norm1d", "norm2d", "norm3d"))
    return isinstance(module, _NORMALISATIONS) or (is_called_so and not any(True for _ in module.children()))
