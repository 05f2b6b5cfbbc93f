"""Signs and other parameters of losses: labels where -1 and 1 are expected, numbers that must be positive.

Owns reading them, in the steps whose operations are looked at.
"""

from typing import Any

from torch import Tensor

from truestep.watch.evidence.facts.passes import BinaryGiven, NegativesLogged
from truestep.watch.script.host import on_host
from truestep.watch.script.parts import is_real
from truestep.watch.script.tape import Tape

_LEAST_LABELS, _MAX_LABELS, _MAX_NUMEL = 4, 1 << 14, 1 << 18


def watch(tape: Tape) -> None:
    """Note labels of losses over two signs, and logarithms of negative numbers."""
    if tape.plan.operations is None:
        return

    def compare(index: int, args: tuple[Any, ...], _kwargs: dict[str, Any], _result: Any) -> None:
        if args[1] == -1 and isinstance(args[0], Tensor):
            note(read_signs(index, args[0], like=None))

    def score(index: int, args: tuple[Any, ...], _kwargs: dict[str, Any], _result: Any) -> None:
        if args[0].requires_grad:
            note(read_signs(index, args[1], like=None))

    def take_logarithm(index: int, args: tuple[Any, ...], _kwargs: dict[str, Any], _result: Any) -> None:
        note(_read_negatives(index, args[0]))

    def note(facts: BinaryGiven | NegativesLogged | None) -> None:
        if facts is not None:
            tape.note(facts)

    tape.read_operation("aten.eq.Scalar", compare)
    tape.read_operation("aten.ne.Scalar", compare)
    tape.read_operation("aten.soft_margin_loss.default", score)
    tape.read_operation("aten.log.default", take_logarithm)


def read_signs(index: int, labels: Tensor, *, like: Tensor | None) -> BinaryGiven | None:
    """Return how many labels of samples are 0, if all others are 1, or -1 in a product."""
    is_flat = labels.dim() == 1 or (labels.dim() > 1 and labels.numel() == labels.shape[0])
    if labels.requires_grad or not is_flat or not _LEAST_LABELS <= labels.numel() <= _MAX_LABELS:
        return None
    if not is_real(labels):
        return None
    if like is not None and (not like.requires_grad or like.shape != labels.shape):
        return None
    values = on_host(labels)
    is_one = values == 1
    if like is not None and not bool(is_one.any()):
        is_one = values == -1
    num_zeros = int((values == 0).sum())
    is_binary = num_zeros + int(is_one.sum()) == values.numel()
    return BinaryGiven(index, num_zeros, values.numel()) if is_binary and num_zeros > 0 else None


def _read_negatives(index: int, given: Tensor) -> NegativesLogged | None:
    if not given.requires_grad or not is_real(given) or not 0 < given.numel() <= _MAX_NUMEL:
        return None
    num_negative = int((on_host(given.detach()) < 0).sum())
    return NegativesLogged(index, num_negative, given.numel()) if num_negative else None
