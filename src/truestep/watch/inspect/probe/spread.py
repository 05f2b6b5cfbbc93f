"""Spread: the line at which a change of the input reaches what it should not.

Owns comparing all operations of two forward passes, one after the other.
"""

from typing import Any

import torch
from torch import Tensor, nn

from truestep.watch.evidence.kinds import Place
from truestep.watch.inspect.probe.copies import run
from truestep.watch.script.tape import Tape

_MAX_BYTES = 64 << 20
_MASKS = ("masked_fill", "masked_fill_", "where", "add", "add_", "baddbmm", "tril", "mul")


class OperationLog:
    """What each operation of a pass gave, as far as memory allows."""

    def __init__(self, tape: Tape) -> None:
        self._sites = tape.sites
        self._outside = tape.sites.here(1)
        self.rows: list[tuple[str, int, Tensor | None]] = []
        self._left = _MAX_BYTES

    def see(self, name: str, result: Any) -> None:
        """Keep what an operation gave; views and what is not a number are passed over."""
        site = self._sites.here(1)
        tensor = result[0] if isinstance(result, tuple | list) and result else result
        kept = None
        if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.numel():
            num_bytes = tensor.numel() * tensor.element_size()
            if num_bytes <= self._left:
                self._left -= num_bytes
                kept = tensor.detach().clone()
        # The same line as outside: no line of the user's lies inside the model.
        self.rows.append((name, 0 if site == self._outside else site, kept))


def find_spread(  # limits: private to this package
    tape: Tape, replica: nn.Module, given: Any, changed: Any, **how: Any
) -> tuple[Place | None, str | None]:
    """Return the user's line of the first operation that spreads a change, and its name.

    With `size` the number of samples, to more than one of them; or, with `axis` a length and a number, to the
    first so many positions, or the last ones if it is negative.
    """
    before, after = OperationLog(tape), OperationLog(tape)
    run(replica, given, before.see)
    run(replica, changed, after.see)
    last_mask = None
    for (name, site, one), (_, _, other) in zip(before.rows, after.rows, strict=False):
        if one is None or other is None or one.shape != other.shape:
            continue
        is_square = "axis" in how and list(one.shape).count(how["axis"][0]) > 1
        if is_square and name in _MASKS and not torch.equal(one, other):
            last_mask = site
        if _is_reached(one, other, **how):
            number = site if last_mask is None else last_mask
            return (tape.sites.table[number] if number else None), name
    return None, None


def _is_reached(
    one: Tensor, other: Tensor, *, size: int | None = None, axis: tuple[int, int] | None = None
) -> bool:
    scale = one.double().nan_to_num(0.0, 0.0, 0.0).std() + 1e-12
    moved = ((one.double() - other.double()).abs() / scale).nan_to_num(0.0) > 1e-5
    if size is not None:
        if one.dim() > 1 and one.shape[0] == size and int(moved.flatten(1).any(dim=1).sum()) > 1:
            return True
        return float(moved.double().mean()) > 1.5 / size and one.dim() > 0
    assert axis is not None
    length, num = axis
    axes = [where for where, extent in enumerate(one.shape) if extent == length]
    for where in axes:  # of a square the corner: scores of pairs may differ wherever one of the two does
        moved = moved.narrow(where, 0 if num > 0 else length + num, abs(num))
    return bool(axes) and bool(torch.any(moved))
