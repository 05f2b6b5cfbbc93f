"""One run of a copy: for those who look at a model at work and must not touch it.

Owns how a model is copied and called. What is looked at is up to others.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from torch import Tensor, nn

from truestep.errors import UsageError

Batch: TypeAlias = Tensor | Sequence[Any] | Mapping[str, Any]
"""What the model is called with: one tensor, arguments in order, or arguments by name."""


def copied(model: nn.Module) -> nn.Module:
    """Return a copy of the model without gradients.

    >>> layer = nn.Linear(1, 1)
    >>> copied(layer).weight is layer.weight
    False
    """
    try:
        made = copy.deepcopy(model)
    except Exception as error:
        raise UsageError(
            f"{type(model).__name__} cannot be copied ({error}), and it is a copy that is run. "
            "Build the model again for this, without tensors that hold a graph."
        ) from error
    made.zero_grad(set_to_none=True)
    return made


def called(model: nn.Module, batch: Batch) -> Any:
    """Return what the model gives for the batch.

    >>> called(nn.Flatten(), {"input": __import__("torch").zeros(2, 3, 4)}).shape
    torch.Size([2, 12])
    """
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple | list) else model(batch)
