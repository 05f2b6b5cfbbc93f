"""Similarities between the samples of a batch, as contrastive losses compare them.

Owns telling from their values whether samples are compared with themselves.
"""

import torch
from torch import Tensor

from truestep.watch.evidence.facts.passes import ItselfCompared, OwnPlacesScored
from truestep.watch.script.host import on_host
from truestep.watch.script.parts import is_real

_LEAST_SAMPLES, _MAX_NUMEL = 4, 1 << 20
_TOLERANCE, _LEAST_GAP = 1e-4, 1e-2


def read_similarities(index: int, given: Tensor) -> ItselfCompared | None:
    """Return what is known of a table, if it compares samples with themselves and no place is masked."""
    is_square = given.dim() == 2 and given.shape[0] == given.shape[1]
    if not is_square or not given.requires_grad or not is_real(given):
        return None
    if given.shape[0] < _LEAST_SAMPLES or given.numel() > _MAX_NUMEL:
        return None
    table = on_host(given.detach()).float()
    scale = float(table.abs().max())
    is_mirrored = bool(((table - table.T).abs() <= _TOLERANCE * scale).all())
    if not is_mirrored or not 0 < scale < float("inf"):
        return None
    own = table.diagonal()
    num = len(own)
    others = (float(table.sum()) - float(own.sum())) / (num * (num - 1))
    # The product of two vectors is at most the product of their lengths; no distance is below 0.
    is_nearest = bool((table <= own[:, None] + _TOLERANCE * scale).all())
    lengths = own.clamp(min=0).sqrt()
    is_product = bool((own > 0).all()) and bool(
        (table.abs() <= lengths[:, None] * lengths + _TOLERANCE * scale).all()
    )
    if float(own.mean()) - others < _LEAST_GAP * scale or not (is_nearest or is_product):
        return None
    return ItselfCompared(index, num, float(own.mean()), others)


def read_own_places(index: int, scores: Tensor, *, target: Tensor) -> OwnPlacesScored | None:
    """Return how many targets are the sample's own number, if there are as many classes as samples."""
    if scores.dim() != 2 or scores.shape[0] != scores.shape[1] or target.dim() != 1:
        return None
    if len(target) < _LEAST_SAMPLES:
        return None
    return OwnPlacesScored(index, len(target), int((target == torch.arange(len(target))).sum()))
