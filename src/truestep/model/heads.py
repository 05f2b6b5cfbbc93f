"""The head of a model: the layer whose output is the model's output.

Owns finding it by running the model. Putting another one there is up to `layers`.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from truestep import rng
from truestep.errors import UsageError
from truestep.model.layers import Replaced, replace
from truestep.model.nests import tensors_in
from truestep.model.once import Batch, called, copied
from truestep.model.tables import shortened

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_HEADS = (nn.Linear, *_CONVOLUTIONS)


def replace_head(
    model: nn.Module, batch: Batch, *, num_outputs: int, ties: Literal["refuse", "break"] = "refuse"
) -> Replaced:
    """Put a new last layer with `num_outputs` outputs into the model, whatever the layer's name.

    A copy of the model runs once on `batch` (a tensor, a tuple of arguments, or a mapping of named ones). The
    head is the linear or convolution layer whose output is the very tensor that the model returns, alone, as
    `.logits` or in a tuple. If there is none, or more than one, nothing is changed and the error explains it:
    name the layer then, in `replace(model, "fc", by=...)`.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 10))
    >>> [name for name, old, new in replace_head(model, torch.zeros(1, 3, 4), num_outputs=2).changed]
    ['3']
    """
    if num_outputs < 1:
        raise UsageError(f"num_outputs is {num_outputs}. Pass 1 or more.")
    name = _find(model, batch)
    return replace(model, name, by=lambda old: _with_outputs(old, num_outputs), ties=ties)


def _find(model: nn.Module, batch: Batch) -> str:
    ran: list[tuple[str, Tensor]] = []
    with rng.kept_generators(), torch.no_grad():
        trial = copied(model).eval()
        for name, module in trial.named_modules():
            if isinstance(module, _HEADS):
                module.register_forward_hook(lambda _m, _i, output, name=name: ran.append((name, output)))
        returned = [tensor for _, tensor in tensors_in(called(trial, batch))]
    heads = list(dict.fromkeys(name for name, made in ran if any(made is tensor for tensor in returned)))
    if len(heads) != 1:
        found = f"are made by {shortened(heads)}" if heads else "are made by no linear or convolution layer"
        raise UsageError(
            f"the outputs of {type(model).__name__} {found}, so it is not clear what its head is. "
            "Name the layer: truestep.model.replace(model, 'fc', by=lambda old: ...)."
        )
    return heads[0]


def _with_outputs(old: nn.Module, num_outputs: int) -> nn.Module:
    if isinstance(old, nn.Linear):
        return nn.Linear(old.in_features, num_outputs, bias=old.bias is not None)
    assert isinstance(old, _CONVOLUTIONS)
    settings = {
        key: getattr(old, key)
        for key in ("kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
    }
    return type(old)(old.in_channels, num_outputs, bias=old.bias is not None, **settings)
