"""What backward would do with a result: the gradient it needs, the vector-Jacobian product in numbers."""

from collections.abc import Sequence

import torch
from torch import Tensor

from truestep.tensor.facts import Jacobian
from truestep.tensor.memory import grad_fn_name
from truestep.tensor.shapes import counted, written

_MAX_ELEMENTS = 16


def backward_notes(result: Tensor) -> list[str]:
    """Say what `result.backward()` needs; nothing if no gradient is recorded."""
    if not result.requires_grad or grad_fn_name(result) is None:
        return []
    if result.numel() == 1:
        return ["the result is one number: backward() needs no argument"]
    size = counted(result.numel(), "element")
    return [f"the result has {size}: backward() needs a gradient of shape {written(result.shape)} passed in"]


def jacobians(result: Tensor, inputs: Sequence[tuple[str, Tensor]]) -> tuple[list[Jacobian], list[str]]:
    """Return the product for each small input, with a vector of ones; or why backward raises."""
    is_small = 1 < result.numel() <= _MAX_ELEMENTS and result.is_floating_point()
    wanted = [(name, tensor) for name, tensor in inputs if 0 < tensor.numel() <= _MAX_ELEMENTS]
    if not is_small or grad_fn_name(result) is None or not wanted:
        return [], []
    try:
        return [_jacobian(result, name, tensor) for name, tensor in wanted], []
    except RuntimeError as error:
        return [], [f"backward raises: {str(error).splitlines()[0]}"]


def _jacobian(result: Tensor, name: str, tensor: Tensor) -> Jacobian:
    def gradient(vector: Tensor) -> list[float]:
        (found,) = torch.autograd.grad(
            result, tensor, vector, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        values: list[float] = found.reshape(-1).tolist()
        return values

    ones = torch.ones_like(result)
    units = torch.eye(result.numel(), dtype=result.dtype, device=result.device)
    rows = [gradient(unit.reshape(result.shape)) for unit in units]
    return Jacobian(
        output="result",
        input=name,
        rows=tuple(tuple(row) for row in rows),
        vector=tuple(ones.reshape(-1).tolist()),
        product=tuple(gradient(ones)),
    )
