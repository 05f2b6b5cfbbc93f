"""Masks: whether attention looks at padding, and whether a mask that a model is given has any effect.

Owns the experiments. Padding is found by its form, as in `truestep.watch.inspect.data.tokens`: one token,
or frames of zeros, in runs of unequal length at the ends of rows.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from truestep.watch.evidence.facts.passes import MaskProbed
from truestep.watch.evidence.kinds import Place
from truestep.watch.inspect.data.tokens import end_runs, frames_as_tokens
from truestep.watch.inspect.probe.copies import run
from truestep.watch.inspect.probe.outputs import find_output, map_tensors, measure_moves
from truestep.watch.inspect.probe.spread import OperationLog
from truestep.watch.script.leaves import find_tensors
from truestep.watch.script.tape import Tape

_SOFTMAX = ("_softmax", "_safe_softmax")
_MIN_LENGTH, _CHANGED = 4, 1e-3


def probe_masks(  # limits: private to this package
    tape: Tape, replica: nn.Module, given: tuple[Any, Any], *, number: int
) -> MaskProbed | None:
    """Look where attention looks, and turn the mask around; None if there is no padding."""
    found = next(
        ((leaf, pads) for _, leaf in find_tensors(given) if (pads := _padding(leaf)) is not None), None
    )
    if found is None:
        return None
    inputs, pads = found
    try:
        torch.backends.mha.set_fastpath_enabled(False)  # in this copy of the process only
        shares, place = _attention(tape, replica, given, pads)
        num_affected, is_unused = _turn_mask(replica, given, inputs, pads)
    except Exception:  # noqa: BLE001 - the model takes no other tokens, or no other mask
        return None
    return MaskProbed(
        model=number,
        num_rows=int(pads.any(1).sum()),
        num_padding=int(pads.sum()),
        least_share=max(shares, default=0.0),
        num_attentions=len(shares),
        is_mask_unused=is_unused,
        num_affected=num_affected,
        place=place,
    )


def _padding(leaf: Tensor) -> Tensor | None:
    """Return which positions of a batch are padding; None if it has none for certain."""
    tokens = frames_as_tokens(leaf) if leaf.is_floating_point() else leaf
    if tokens is None or tokens.dim() != 2 or tokens.dtype == torch.bool or tokens.shape[1] < _MIN_LENGTH:
        return None
    if tokens.shape[0] < 2 or len(tokens.unique()) <= 2:
        return None  # it may be a mask itself
    runs = end_runs(tokens)
    if runs is None:
        return None
    lengths = runs[1]
    places = torch.arange(tokens.shape[1])
    return places[None] >= (tokens.shape[1] - lengths)[:, None]


def _attention(  # limits: private to this module
    tape: Tape, replica: nn.Module, given: tuple[Any, Any], pads: Tensor
) -> tuple[list[float], Place | None]:
    """Return the least share of each attention's weight on padding, and the line of the first."""
    log = OperationLog(tape)
    with sdpa_kernel(SDPBackend.MATH):  # one that shows its weights
        run(replica, given, log.see)
    shares: list[float] = []
    first = 0
    # Beside one that looks at padding only, others may look at other tokens, as in a decoder.
    for name, site, weights in log.rows:
        share = _share_on_padding(weights, pads) if name in _SOFTMAX and weights is not None else None
        if share is not None:
            first = site if share > max(shares, default=-1.0) else first
            shares.append(share)
    return shares, tape.sites.table[first] if first else None


def _share_on_padding(weights: Tensor, pads: Tensor) -> float | None:
    """Return the least share of a query's weight on padding; None if these are no weights of attention.

    A token of the model's own, before or after the others, is left out.
    """
    size, length = pads.shape
    if weights.dim() < 3 or weights.shape[-1] not in (length, length + 1) or weights.shape[0] % size:
        return None
    weights = weights.reshape(size, -1, *weights.shape[-2:])
    has_more, is_of_all = weights.shape[-1] > length, weights.shape[-2] == weights.shape[-1]
    shares = []
    for part in (slice(1, None), slice(-1)) if has_more else (slice(None),):
        own = weights[..., part]
        share = _least_share(own[:, :, part] if is_of_all else own, pads)
        shares += [share] if share is not None else []
    return max(shares, default=None)


def _least_share(weights: Tensor, pads: Tensor) -> float | None:
    rows = pads.any(1)
    on_padding = (weights * pads[:, None, None]).sum(-1)[rows]
    total = weights.sum(-1)[rows]
    if weights.shape[-2] == pads.shape[1]:  # of the queries those of real positions
        real = ~pads[rows][:, None].expand_as(on_padding)
        on_padding, total = on_padding[real], total[real]
    share = on_padding / total
    return float(share.min()) if bool(torch.isfinite(share).all()) and share.numel() else None


def _turn_mask(  # limits: private to this module
    replica: nn.Module, given: tuple[Any, Any], inputs: Tensor, pads: Tensor
) -> tuple[int, bool]:
    """Return how many samples change with their padding, and whether the mask they come with does nothing."""
    masks = [leaf for _, leaf in find_tensors(given) if leaf is not inputs and _is_mask(leaf, pads)]
    if not masks:
        return 0, False
    size = len(pads)
    turned = map_tensors(given, lambda leaf: _turn(leaf) if any(leaf is mask for mask in masks) else leaf)
    filled = inputs.clone()
    filled[pads] = inputs.roll(1, 1)[~pads][: int(pads.sum())] if _fits(pads) else inputs[0, 0]
    others = map_tensors(given, lambda leaf: filled if leaf is inputs else leaf)
    plain, around, changed = (find_output(run(replica, item), size) for item in (given, turned, others))
    again = find_output(run(replica, given, seed=1), size)
    if plain is None or around is None or changed is None or again is None or not torch.equal(plain, again):
        return 0, False
    if plain.dim() > 2 and plain.shape[1] == pads.shape[1]:  # outputs at padding are of no interest
        is_real = (~pads).reshape(*pads.shape, *[1] * (plain.dim() - 2))
        plain, around, changed = plain * is_real, around * is_real, changed * is_real
    num_affected = int((measure_moves(plain, changed)[pads.any(1)] > _CHANGED).sum())
    return num_affected, torch.equal(plain, around)


def _fits(pads: Tensor) -> bool:
    return int((~pads).sum()) >= int(pads.sum())


def _is_mask(leaf: Tensor, pads: Tensor) -> bool:
    if leaf.shape != pads.shape or not bool(((leaf == 0) | (leaf == 1)).all()):
        return False
    return torch.equal(leaf != 0, pads) or torch.equal(leaf == 0, pads)


def _turn(mask: Tensor) -> Tensor:
    return ~mask if mask.dtype == torch.bool else 1 - mask
