"""Given targets: whether a model of tokens is scored on the very tokens that it is given.

Owns the comparison, and the two experiments that tell a model that reads from the first token to the last
from one that may well be asked for its own input, such as an autoencoder.
"""

from typing import Any

import torch
from torch import Tensor, nn

from truestep.watch.evidence.facts.passes import TargetGiven
from truestep.watch.inspect.probe.copies import run
from truestep.watch.inspect.probe.outputs import by_position, map_tensors, measure_moves
from truestep.watch.script.leaves import find_tensors

_IGNORED = -100
_MIN_LENGTH, _MIN_SCORED, _MIN_TOKENS = 4, 12, 3
_CHANGED, _LEAST_SHARE = 1e-3, 0.9


def probe_given_targets(  # limits: private to this package
    replica: nn.Module, given: tuple[Any, Any], targets: list[Tensor], *, number: int
) -> TargetGiven | None:
    """Return how outputs depend on earlier and later tokens; None unless targets are the tokens given."""
    for tokens in (leaf for _, leaf in find_tensors(given)):
        for target in targets:
            share, num = _agreement(tokens, target)
            if share < _LEAST_SHARE:
                continue
            for axis in (1, 0):
                counts = _count_changes(replica, given, tokens, axis=axis)
                if counts is not None and counts[1]:
                    return TargetGiven(number, tokens.shape[axis], share, num, *counts)
    return None


def _agreement(tokens: Tensor, target: Tensor) -> tuple[float, int]:
    """Return which share of the scored targets is the token at the same position, and of how many."""
    if tokens.dim() != 2 or tokens.is_floating_point() or target.is_floating_point():
        return 0.0, 0
    if tokens.dtype == torch.bool or tokens.numel() != target.numel() or min(tokens.shape) < 2:
        return 0.0, 0
    target = target.reshape(tokens.shape)
    is_scored = target != _IGNORED
    num = int(is_scored.sum())
    if num < _MIN_SCORED or len(target[is_scored].unique()) < _MIN_TOKENS:
        return 0.0, 0
    return float((target == tokens)[is_scored].double().mean()), num


def _count_changes(  # limits: private to this module
    replica: nn.Module, given: tuple[Any, Any], tokens: Tensor, *, axis: int
) -> tuple[int, int] | None:
    """Return how many outputs change before replaced later tokens, and after replaced earlier ones."""
    length, size = tokens.shape[axis], tokens.shape[1 - axis]
    if length < _MIN_LENGTH:
        return None
    cut = length // 2
    parts = (slice(cut, None), slice(0, cut), slice(cut, cut + 1))
    versions = [given, given, *(_replace(given, tokens, axis=axis, part=part) for part in parts)]
    plain, *others = (by_position(run(replica, item), length, size, axis) for item in versions)
    if plain is None:
        return None
    found = [item for item in others if item is not None]
    if len(found) < len(others) or not torch.equal(plain, found[0]):
        return None
    _, later, earlier, own = found
    if not bool(measure_moves(plain, own)[cut] > _CHANGED):
        return None  # the model itself shifts what it is given
    before = measure_moves(plain, later)[:cut] > _CHANGED
    after = measure_moves(plain, earlier)[cut:] > _CHANGED
    return int(before.sum()), int(after.sum())


def _replace(  # limits: private to this module
    given: tuple[Any, Any], tokens: Tensor, *, axis: int, part: slice
) -> Any:
    """Return arguments in which one part of the tokens is that of another sample."""
    result = tokens.clone().transpose(0, axis)
    result[part] = tokens.transpose(0, axis).roll(1, dims=1)[part]
    return map_tensors(given, lambda leaf: result.transpose(0, axis) if leaf is tokens else leaf)
