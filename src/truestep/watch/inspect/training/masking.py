"""Masks of a softmax: which positions they cover, and how much weight these still get.

Owns following masked scores to the softmax, in the steps whose operations are looked at. Whether a mask is
too weak is left to the rules.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from truestep.watch.evidence.facts.passes import MaskMeasured
from truestep.watch.script.host import on_host
from truestep.watch.script.parts import is_plain, is_real
from truestep.watch.script.tape import Tape

_MAX_NUMEL, _MAX_READ, _MAX_MASKS = 1 << 20, 1 << 18, 2
_MAX_KEPT, _MAX_NOTED = 8, 48
_STRONG, _LARGEST = -5.0, 1e30
_LENGTHS = 2
_CARRYING = ("div.Tensor", "div_.Tensor", "mul.Scalar", "div.Scalar", "_to_copy.default", "clone.default")


def watch(tape: Tape) -> None:
    """Note the weight of masked positions, in the steps whose operations are looked at."""
    if tape.plan.operations is None:
        return
    masks = _Masks(tape)
    for name, reader in (("mul", masks.multiplied), ("add", masks.added), ("sub", masks.subtracted)):
        for form in (f"{name}.Tensor", f"{name}_.Tensor"):
            tape.read_operation(f"aten.{form}", reader)
    for name in (
        "div.Tensor",
        "div_.Tensor",
        "mul.Scalar",
        "div.Scalar",
        "_to_copy.default",
        "clone.default",
    ):
        tape.read_operation(f"aten.{name}", masks.carried)
    for name in ("masked_fill.Scalar", "masked_fill_.Scalar"):
        tape.read_operation(f"aten.{name}", masks.filled)
    tape.read_operation("aten.where.self", masks.chosen)
    tape.read_operation("aten.baddbmm.default", masks.begun)
    for name in ("_softmax", "_safe_softmax"):
        tape.read_operation(f"aten.{name}.default", masks.normalised)
    for name in ("flash_attention_for_cpu", "efficient_attention"):
        tape.read_operation(f"aten._scaled_dot_product_{name}.default", masks.attended)
    tape.attend(masks, "counted")


@dataclass(frozen=True)
class _Mask:
    """A mask that was applied to scores."""

    index: int
    """The operation that applied it."""
    how: str
    """It was `multiplied`, `added`, or its places were `filled`."""
    mask: Tensor
    value: float
    """What places are filled with; else the factor of the mask."""
    is_inverted: bool = False
    """Of a choice: whether the scores stay where the mask is true."""


class _Masks:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._kept: dict[int, tuple[StorageWeakRef, list[_Mask]]] = {}
        """By the memory of masked scores."""
        self._num_noted = 0

    def counted(self) -> None:
        self._kept.clear()
        self._num_noted = 0

    def multiplied(self, index: int, args: tuple[Any, ...], _kwargs: dict[str, Any], result: Any) -> None:
        """Scores may be multiplied by a mask."""
        self._applied(index, "multiplied", args, result)

    def added(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """A mask may be added to scores."""
        if not kwargs:
            self._applied(index, "added", args, result)

    def subtracted(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """A mask may be subtracted from scores."""
        scores, mask = args[:2]
        if not kwargs and isinstance(scores, Tensor) and scores.requires_grad and _may_be_mask(mask):
            self._keep(scores, result, _Mask(index, "added", mask, -1.0))

    def _applied(self, index: int, how: str, args: tuple[Any, ...], result: Any) -> None:
        one, other = args[:2]
        if not isinstance(one, Tensor) or not isinstance(other, Tensor):
            self._carry(args, result)
        elif one.requires_grad and _may_be_mask(other):
            self._keep(one, result, _Mask(index, how, other, 1.0))
        elif other.requires_grad and _may_be_mask(one):
            self._keep(other, result, _Mask(index, how, one, 1.0))
        elif other.dim() == 0:
            self._carry(args, result)

    def carried(self, _index: int, args: tuple[Any, ...], _kwargs: dict[str, Any], result: Any) -> None:
        """Masked scores are scaled or copied."""
        self._carry(args, result)

    def _carry(self, args: tuple[Any, ...], result: Any) -> None:
        factor = args[1] if len(args) > 1 else 1
        is_other = isinstance(factor, Tensor) and factor.dim() > 0
        is_turned = isinstance(factor, int | float) and factor <= 0
        if self._kept and not is_other and not is_turned and isinstance(args[0], Tensor):
            self._keep(args[0], result, None)

    def filled(self, index: int, args: tuple[Any, ...], _kwargs: dict[str, Any], result: Any) -> None:
        """Scores are replaced by a number where a mask is true."""
        scores, mask, value = args[:3]
        if scores.requires_grad and _may_be_mask(mask):
            self._keep(scores, result, _Mask(index, "filled", mask, float(value)))

    def chosen(self, index: int, args: tuple[Any, ...], _kwargs: dict[str, Any], result: Any) -> None:
        """Scores are replaced where a condition is false, or true."""
        mask, one, other = args[:3]
        if one.requires_grad == other.requires_grad or not _may_be_mask(mask):
            return
        scores, rest = (one, other) if one.requires_grad else (other, one)
        value = on_host(rest.detach().flatten()[:1])
        if rest.numel() == 1 or bool((rest == rest.flatten()[0]).all()):
            self._keep(scores, result, _Mask(index, "filled", mask, float(value), scores is one))

    def begun(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """A mask may be what the product of queries and keys is added to."""
        mask, queries = args[:2]
        if not kwargs and queries.requires_grad and _may_be_mask(mask):
            self._keep(queries, result, _Mask(index, "added", mask, 1.0))

    def _keep(self, scores: Tensor, result: Any, mask: _Mask | None) -> None:
        if not is_plain(scores) or not is_plain(result):
            return
        known = self._kept.get(scores.untyped_storage()._cdata, (None, []))[1]
        masks = [*known, mask] if mask is not None else known
        if not masks or len(masks) > _MAX_MASKS:
            return
        storage = result.untyped_storage()
        self._kept[storage._cdata] = (StorageWeakRef(storage), masks)
        if len(self._kept) > _MAX_KEPT:
            del self._kept[next(iter(self._kept))]

    def normalised(self, index: int, args: tuple[Any, ...], _kwargs: dict[str, Any], result: Any) -> None:
        """Scores become weights: read those of masked positions."""
        scores, axis = args[:2]
        if not is_plain(scores):
            return
        kept = self._kept.pop(scores.untyped_storage()._cdata, None)
        for mask in kept[1] if kept is not None and scores.requires_grad else ():
            self._note(index, mask, result.detach(), axis)

    def attended(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any], _result: Any) -> None:
        """Attention is computed in one operation: compute its weights for a part of the batch."""
        mask = kwargs.get("attn_mask", args[3] if len(args) > 3 else None)
        if not isinstance(mask, Tensor) or mask.requires_grad or mask.dim() < _LENGTHS:
            return
        num = _MAX_READ // (args[0].shape[-2] * args[1].shape[-2])
        if not num:
            return
        queries, keys = (on_host(item.detach()[:num, :1]).float() for item in args[:2])
        scale = kwargs.get("scale") or queries.shape[-1] ** -0.5
        scores = queries @ keys.transpose(-1, -2) * scale
        whole = mask.expand(*args[0].shape[:2], *scores.shape[-2:])[:num, :1]
        weights = (scores + on_host(whole).float()).softmax(-1)
        self._note(index, _Mask(index, "added", whole, 1.0), weights, -1)

    def _note(self, index: int, mask: _Mask, weights: Tensor, axis: int) -> None:
        if self._num_noted >= _MAX_NOTED or weights.dim() < _LENGTHS:
            return
        try:
            covered = mask.mask.expand(weights.shape)
        except RuntimeError:  # the scores have another form since then
            return
        facts = _measure(index, mask, *(_part(item, axis) for item in (weights, covered)))
        if facts is not None:
            self._num_noted += 1
            self._tape.note(facts)


def _may_be_mask(tensor: Any) -> bool:
    return (
        is_real(tensor)
        and not tensor.requires_grad
        and tensor.dim() >= _LENGTHS
        and 1 < tensor.numel() <= _MAX_NUMEL
    )


def _part(tensor: Tensor, axis: int) -> Tensor:
    """Return the first rows of a tensor as a table, whose columns are the axis of the softmax."""
    tensor = tensor.movedim(axis, -1)
    for place in range(tensor.dim() - 2):
        if tensor.numel() > _MAX_READ:
            each = max(1, tensor.numel() // tensor.shape[place])
            tensor = tensor.narrow(place, 0, max(1, min(tensor.shape[place], _MAX_READ // each)))
    return on_host(tensor).reshape(-1, tensor.shape[-1])


def _measure(index: int, mask: _Mask, weights: Tensor, given: Tensor) -> MaskMeasured | None:
    """Return how much weight masked positions get, relative to their number; None if it is no mask."""
    if weights.numel() > 4 * _MAX_READ:
        return None
    value = mask.value
    if mask.how == "filled":
        covered = given.bool() ^ mask.is_inverted
    elif mask.how == "multiplied":
        covered = given == 0
        if not bool((covered | (given == 1)).all()):
            return None
    else:
        covered = given != 0
        others = given[covered]
        if not len(others) or not bool((others == others[0]).all()):
            return None
        value *= float(others[0])
    is_mixed = covered.any(1) & ~covered.all(1)
    weights, covered = weights[is_mixed].double(), covered[is_mixed]
    if not len(weights) or not bool(weights.isfinite().all()):
        return None
    shares = (weights * covered).sum(1) / weights.sum(1)
    if mask.how == "added" and value > _STRONG:  # which of the two kinds is to be left out is not known
        shares = torch.minimum(shares / covered.double().mean(1), (1 - shares) / (~covered).double().mean(1))
        shares = shares * covered.double().mean(1)
    return MaskMeasured(
        operation_index=index,
        masking_index=mask.index,
        how=mask.how,
        value=min(max(value, -_LARGEST), _LARGEST),
        is_run=_is_run(covered),
        num_rows=len(covered),
        covered=float(covered.double().mean()),
        share=float(shares.mean()),
    )


def _is_run(covered: Tensor) -> bool:
    """Whether the covered positions are one end of each row, always the same, and not always as long."""
    lengths = covered.sum(1)
    is_single = bool(((covered[:, 1:] != covered[:, :-1]).sum(1) == 1).all())
    is_one_end = bool((covered[:, 0] == covered[0, 0]).all())
    return is_single and is_one_end and len(lengths.unique()) >= _LENGTHS
