"""What goes into a forward pass and what comes out: changing inputs, finding and comparing outputs.

Owns how far an output has moved. What a move means is left to the probes.
"""

from typing import Any

import torch
from torch import Tensor

from truestep.watch.script.nested_tensors import find_tensors


def map_tensors(values: Any, act: Any) -> Any:
    """Return arguments with each tensor replaced by what a function makes of it."""
    if isinstance(values, Tensor):
        return act(values)
    if isinstance(values, dict):
        return {key: map_tensors(item, act) for key, item in values.items()}
    if isinstance(values, list | tuple):
        return type(values)(map_tensors(item, act) for item in values)
    return values


def find_output(values: Any, size: int) -> Tensor | None:
    """Return the first tensor of numbers that has an entry for each sample."""
    for _, leaf in find_tensors(values):
        if leaf.is_floating_point() and leaf.shape[:1] == (size,):
            return leaf
    return None


def measure_moves(before: Tensor, after: Tensor) -> Tensor:
    """Return for each entry of the first axis how far it moved, as a share of the usual size.

    Entry by entry: the scores of all words for all tokens may take more memory than the model.
    """
    mean = sum(row.double().sum() for row in before) / before.numel()
    variance = sum((row.double() - mean).square().sum() for row in before) / (before.numel() - 1)
    scale = torch.as_tensor(variance).sqrt() + 1e-12
    pairs = zip(before, after, strict=True)
    moved = [((two.double() - one.double()).abs() / scale).nan_to_num(0.0).amax() for one, two in pairs]
    return torch.stack(moved)


def by_position(  # limits: private to this package
    values: Any, length: int, size: int, axis: int
) -> Tensor | None:
    """Return the first output that has an entry for each position, positions first."""
    shape = (length, size) if axis == 0 else (size, length)
    for _, leaf in find_tensors(values):
        if leaf.is_floating_point() and leaf.dim() > 1:
            if leaf.shape[:2] == shape:
                return leaf.transpose(0, axis)
            # Classes may come before positions.
            if axis and leaf.dim() > 2 and (leaf.shape[0], leaf.shape[2]) == shape:
                return leaf.permute(2, 0, 1, *range(3, leaf.dim()))
            if leaf.shape[0] == length * size:  # as the loss takes them
                return leaf.reshape(*shape, *leaf.shape[1:]).transpose(0, axis)
    return None
