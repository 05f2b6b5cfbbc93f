"""Masks: whether attention looks at padding.

Owns the experiment. Padding is found by its form, as in `truestep.watch.inspect.data.tokens`: one token,
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
from truestep.watch.inspect.probe.spread import OperationLog
from truestep.watch.script.nested_tensors import find_tensors
from truestep.watch.script.tape import Tape

_SOFTMAX = ("_softmax", "_safe_softmax")
_MIN_LENGTH = 4


def probe_masks(  # limits: private to this package
    tape: Tape, replica: nn.Module, given: tuple[Any, Any], *, number: int
) -> MaskProbed | None:
    """Look where attention looks; None if there is no padding."""
    found = next((pads for _, leaf in find_tensors(given) if (pads := _padding(leaf)) is not None), None)
    if found is None:
        return None
    pads = found
    try:
        torch.backends.mha.set_fastpath_enabled(False)  # in this copy of the process only
        shares, place = _attention(tape, replica, given, pads)
    except Exception:  # noqa: BLE001 - the model takes no other tokens
        return None
    return MaskProbed(
        model=number,
        num_rows=int(pads.any(1).sum()),
        num_padding=int(pads.sum()),
        least_share=max(shares, default=0.0),
        num_attentions=len(shares),
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
