"""Losses as they are computed: what goes in, what is scored, and what comes out.

Owns reading the tensors of loss operations while operations are looked at. Which operation made them is in
the operations themselves. Sequences of tokens are in `tokens`.
"""

from typing import Any

import torch
from torch import Tensor, nn

from truestep.watch.evidence.facts.passes import (
    ClassesScored,
    ClassesWeighted,
    EqualCompared,
    ProbabilitiesScored,
    ScoresNormalised,
)
from truestep.watch.inspect.data.tokens import Tokens
from truestep.watch.script import module_tree
from truestep.watch.script.host import on_host
from truestep.watch.script.tape import Tape

_MAX_NUMEL = 1 << 16
_MAX_TARGETS = 1 << 18
_MAX_CLASSES = 64
_LEAST_COMPARED = 16
_TOLERANCE = 1e-3
_EDGE = 1e-2
_MAX_NODES = 12
_COMPARING = (
    *("mm.default", "bmm.default", "sub.Tensor", "mul.Tensor", "cat.default", "mse_loss.default"),
    *("_cdist_forward.default", "_euclidean_dist.default"),
)
_CUTTING = "SliceBackward"
_SHAPING = ("LogSoftmax", "View", "UnsafeView", "Reshape", "Clone", "Transpose", "Permute", "ToCopy", "TBack")


def watch(tape: Tape) -> None:
    """Note what loss operations are given, in the steps whose operations are looked at."""
    if tape.plan.operations is None:
        return
    losses = _Losses(tape)
    tape.listen(losses.read_normalised, "aten._log_softmax.default")
    for name in ("nll_loss_forward", "nll_loss2d_forward"):
        tape.listen(losses.read_scored, f"aten.{name}.default")
    for name in ("binary_cross_entropy", "binary_cross_entropy_with_logits"):
        tape.listen(losses.read_probabilities, f"aten.{name}.default")
    for name in _COMPARING:
        tape.listen(losses.read_compared, f"aten.{name}")
    tape.listen(losses, "forward_begins", close_look=True)
    tape.listen(losses, "counted")


class _Losses:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._tokens = Tokens()

    def forward_begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        recorder = self._tape.recorder
        # A loss has no parameters: what it is given are targets.
        if (
            recorder is not None
            and recorder.is_open
            and next(module_tree.parameters(module), None) is not None
        ):
            self._tokens.remember(module, args, kwargs)

    def counted(self) -> None:
        self._tokens.forget()

    def read_normalised(
        self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any], _result: Any
    ) -> None:
        """Read whether what is to be normalised is so already."""
        scores, dim = args[0], args[1] if len(args) > 1 else kwargs["dim"]
        if not scores.requires_grad or scores.dim() == 0 or not _is_plain(scores):
            return
        part = _part(scores.detach(), dim)
        if part is None:
            return
        part = on_host(part)
        sums = part.sum(dim, dtype=torch.float64)
        is_distribution = bool((part >= 0).all()) and bool(((sums - 1).abs() < _TOLERANCE).all())
        self._tape.note(ScoresNormalised(index, is_distribution, float(part.min()), float(part.max())))

    def read_scored(self, index: int, args: tuple[Any, ...], _kwargs: dict[str, Any], result: Any) -> None:
        """Read what is scored: classes, targets, what is left out, the loss."""
        scores, target, weight, reduction, ignored = args[:5]
        if not scores.requires_grad or not _is_plain(scores) or not 0 < target.numel() <= _MAX_TARGETS:
            return
        target, weight = on_host(target), None if weight is None else on_host(weight)
        kept = target[target != ignored]
        shifts, padding = self._tokens.compare(target, ignored=ignored, weight=weight)
        if shifts and _is_cut(scores):
            shifts = []  # the first scores are not those of the first tokens
        facts = ClassesScored(
            operation_index=index,
            reduction=("none", "mean", "sum")[reduction],
            ignored=ignored,
            num_scored=kept.numel(),
            loss=float(on_host(result[0])) if reduction and kept.numel() else None,
            shifts=shifts,
            padding=padding,
        )
        self._tape.note(facts)
        if weight is not None and 1 < weight.numel() <= _MAX_CLASSES:
            counts = kept.bincount(minlength=weight.numel()).tolist()
            self._tape.note(ClassesWeighted("CrossEntropyLoss", weight.tolist(), counts))

    def read_probabilities(
        self, index: int, args: tuple[Any, ...], _kwargs: dict[str, Any], _result: Any
    ) -> None:
        """Read how much of what shall be probabilities or scores lies at the edges."""
        given = args[0]
        if not given.requires_grad or not _is_plain(given) or not 0 < given.numel() <= _MAX_TARGETS:
            return
        given = on_host(given.detach())
        low, high = float(given.min()), float(given.max())
        at_low = float((given == low).float().mean()) if low < _EDGE else 0.0
        at_high = float((given == high).float().mean()) if high > 1 - _EDGE else 0.0
        self._tape.note(ProbabilitiesScored(index, given.numel(), at_low + at_high))
        weight = args[3] if len(args) > 3 else None
        if weight is not None and weight.numel() == 1 and _is_plain(args[1]):
            target = on_host(args[1].detach())
            counts = [int((target == label).sum()) for label in (0, 1)]
            if sum(counts) == target.numel():
                self._tape.note(ClassesWeighted("BCEWithLogitsLoss", [1.0, float(on_host(weight))], counts))

    def read_compared(self, index: int, args: tuple[Any, ...], _kwargs: Any, _result: Any) -> None:
        """Read whether two trained tensors are equal; the second factor of a product is transposed."""
        pair = args[0] if isinstance(args[0], list | tuple) and not any(args[1:]) else args[:2]
        if len(pair) != 2 or not all(isinstance(item, Tensor) and item.requires_grad for item in pair):
            return
        one, other = (item.detach() for item in pair)
        is_read = one.dim() > 1 and _LEAST_COMPARED <= one.numel() <= _MAX_TARGETS and _is_plain(one)
        if not is_read or one.data_ptr() == other.data_ptr() or other.dim() != one.dim():
            return
        one, other = on_host(one), on_host(other)
        is_equal = torch.equal(one, other) or torch.equal(one, other.mT)
        if is_equal and bool((one != one.flatten()[0]).any()):
            self._tape.note(EqualCompared(index, one.numel()))


def _is_plain(tensor: Tensor) -> bool:
    """Whether it has values that can be read."""
    return not tensor.is_meta and tensor.layout == torch.strided and tensor.numel() > 0


def _is_cut(scores: Tensor) -> bool:
    """Whether the first of a model's scores were cut off before these were scored."""
    node: Any = scores.grad_fn
    for _ in range(_MAX_NODES):
        name = type(node).__name__
        if name.startswith(_CUTTING) and node._saved_dim and node._saved_start:
            return True
        if node is None or not name.startswith((*_SHAPING, _CUTTING)):
            return False
        node = node.next_functions[0][0]
    return False


def _part(tensor: Tensor, dim: int) -> Tensor | None:
    """Return so much of a tensor as is quickly read, whole along the dimension."""
    for axis in range(tensor.dim()):
        if axis != dim % tensor.dim() and tensor.numel() > _MAX_NUMEL:
            each = tensor.numel() // tensor.shape[axis]
            tensor = tensor.narrow(axis, 0, max(1, min(tensor.shape[axis], _MAX_NUMEL // max(each, 1))))
    return tensor if 0 < tensor.numel() <= 4 * _MAX_NUMEL else None
