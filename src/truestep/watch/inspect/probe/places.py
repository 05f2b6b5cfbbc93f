"""Places: whether a sample's output is the same wherever in the batch it stands.

Owns moving all samples by one place, and finding the line at which the place comes in.
"""

from typing import Any

import torch
from torch import Tensor, nn

from truestep.watch.evidence.facts.passes import PlaceInBatch
from truestep.watch.evidence.kinds import Place
from truestep.watch.inspect.probe.copies import run
from truestep.watch.inspect.probe.outputs import find_output, map_tensors, measure_moves
from truestep.watch.inspect.probe.spread import OperationLog
from truestep.watch.script.nested_tensors import find_tensors
from truestep.watch.script.tape import Tape

_CHANGED = 1e-3
_OTHER_SEED = 1


def probe_places(  # limits: private to this package
    tape: Tape, replica: nn.Module, given: tuple[Any, Any], *, number: int, size: int
) -> PlaceInBatch | None:
    """Move each of the first samples up by one and compare; None if not all of a sample can be moved."""
    first = next(leaf for _, leaf in find_tensors(given))
    few = map_tensors(given, lambda leaf: leaf[:size] if leaf.shape[:1] == first.shape[:1] else leaf)
    if not _is_movable(few, size) or _has_lists(given, first.shape[0]):
        return None
    rolled = map_tensors(few, lambda leaf: leaf.roll(1, 0) if leaf.shape[:1] == (size,) else leaf)
    try:
        output, other = (find_output(run(replica, values), size) for values in (few, rolled))
        again = find_output(run(replica, few, seed=_OTHER_SEED), size)
    except Exception:  # noqa: BLE001 - samples may have to be sorted by length
        return None
    if output is None or other is None or again is None or output.shape != other.shape:
        return None
    if not torch.equal(output, again):
        return None  # noise differs from place to place, and state from call to call
    moved = measure_moves(output.roll(1, 0), other)
    num_changed = int((moved > _CHANGED).sum())
    place = _find_line(tape, replica, few, rolled, size=size) if num_changed else None
    return PlaceInBatch(number, size, num_changed, float(moved.max()), place)


def _is_movable(few: tuple[Any, Any], size: int) -> bool:
    """Whether each tensor has its samples first, or none: states have them second, and indices name them."""
    for _, leaf in find_tensors(few):
        is_first = leaf.shape[:1] == (size,)
        if size in leaf.shape[1:] or (
            not is_first and not leaf.is_floating_point() and leaf.dtype != torch.bool
        ):
            return False
    return True


def _has_lists(values: Any, size: int) -> bool:
    """Whether something that is not a tensor may have an entry for each sample."""
    if isinstance(values, dict):
        return any(_has_lists(item, size) for item in values.values())
    if isinstance(values, list | tuple):
        return len(values) == size or any(_has_lists(item, size) for item in values)
    return False


def _find_line(  # limits: private to this module
    tape: Tape, replica: nn.Module, few: Any, rolled: Any, *, size: int
) -> Place | None:
    """Return the line of the first operation whose result did not move along."""
    before, after = OperationLog(tape), OperationLog(tape)
    run(replica, few, before.see)
    run(replica, rolled, after.see)
    for (_, site, one), (_, _, other) in zip(before.rows, after.rows, strict=False):
        if one is None or other is None or one.shape != other.shape or not _has_samples(one, size):
            continue
        if not torch.equal(one, other) and not _has_moved_along(one, other, size):
            return tape.sites.table[site] if site else None
    return None


def _has_samples(values: Tensor, size: int) -> bool:
    return size in values.shape or (values.dim() > 0 and values.shape[0] % size == 0)


def _has_moved_along(one: Tensor, other: Tensor, size: int) -> bool:
    """Whether a result has moved by one sample along an axis; heads may share the first with samples."""
    scale = one.double().nan_to_num(0.0, 0.0, 0.0).std() + 1e-12
    steps = [(axis, 1) for axis, extent in enumerate(one.shape) if extent == size]
    if one.shape[0] % size == 0:
        steps += [(0, one.shape[0] // size)]
    for axis, num in steps:
        distance = (one.roll(num, axis).double() - other.double()).abs().nan_to_num(0.0)
        if not bool((distance > _CHANGED * scale).any()):
            return True
    return False
