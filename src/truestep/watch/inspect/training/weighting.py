"""Weights that one number is multiplied with, as a loss is with the weights of its samples.

Owns reading these weights, in the steps whose operations are looked at.
"""

from typing import Any

from torch import Tensor

from truestep.watch.evidence.facts.passes import NumberWeighted
from truestep.watch.inspect.training.signs import read_signs
from truestep.watch.script.host import on_host
from truestep.watch.script.parts import is_real
from truestep.watch.script.tape import Tape

_MAX_NUMEL = 1 << 18


def watch(tape: Tape) -> None:
    """Note products of one number that has a gradient and several different ones that have none."""
    if tape.plan.operations is None:
        return

    def multiply(index: int, args: tuple[Any, ...], _kwargs: dict[str, Any], _result: Any) -> None:
        one, other = args[:2]
        if isinstance(one, Tensor) and isinstance(other, Tensor):
            read(index, one, other)
            read(index, other, one)
            facts = read_signs(index, one, like=other) or read_signs(index, other, like=one)
            if facts is not None:
                tape.note(facts)

    def divide(index: int, args: tuple[Any, ...], _kwargs: dict[str, Any], _result: Any) -> None:
        if isinstance(args[1], Tensor):
            read(index, args[0], args[1])

    def read(index: int, number: Tensor, weights: Tensor) -> None:
        if number.dim() or not number.requires_grad or not _is_weights(weights):
            return
        values = on_host(weights.detach())
        low, high = float(values.min()), float(values.max())
        if low < high:
            is_binary = bool(((values == 0) | (values == 1)).all())
            tape.note(NumberWeighted(index, values.numel(), low, high, is_binary))

    tape.read_operation("aten.mul.Tensor", multiply)
    tape.read_operation("aten.div.Tensor", divide)


def _is_weights(tensor: Tensor) -> bool:
    return is_real(tensor) and not tensor.requires_grad and 1 < tensor.numel() <= _MAX_NUMEL
