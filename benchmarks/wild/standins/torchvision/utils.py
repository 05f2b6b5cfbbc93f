# ruff: noqa: A002, ARG001 - signatures are torchvision's
"""Pictures of batches."""

import math

import numpy as np
import torch
from PIL import Image


@torch.no_grad()
def make_grid(
    tensor, nrow=8, padding=2, normalize=False, value_range=None, scale_each=False, pad_value=0.0, **_
):
    """Put images side by side."""
    tensor = torch.stack(list(tensor)) if isinstance(tensor, list | tuple) else tensor
    tensor = tensor[None] if tensor.dim() == 3 else tensor
    tensor = tensor.expand(-1, 3, -1, -1) if tensor.size(1) == 1 else tensor
    if normalize:
        low, high = value_range or (float(tensor.min()), float(tensor.max()))
        tensor = (tensor - low) / max(high - low, 1e-5)
    columns = min(nrow, len(tensor))
    rows = math.ceil(len(tensor) / columns)
    height, width = tensor.size(2) + padding, tensor.size(3) + padding
    grid = tensor.new_full((3, rows * height + padding, columns * width + padding), pad_value)
    for number, image in enumerate(tensor):
        top, left = number // columns * height + padding, number % columns * width + padding
        grid[:, top : top + image.size(1), left : left + image.size(2)] = image[:3]
    return grid


@torch.no_grad()
def save_image(tensor, fp, format=None, **options):
    """Write images to one file."""
    grid = make_grid(tensor, **options).mul(255).add(0.5).clamp(0, 255).byte().permute(1, 2, 0)
    Image.fromarray(np.ascontiguousarray(grid.cpu().numpy())).save(fp, format=format)
