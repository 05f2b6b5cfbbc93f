"""Parts: a tensor that is spread over processes, as seen from one of them.

Owns the way from a DTensor to its part of the whole and back. Leaves states to `state` and files to others.
"""

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeGuard

import torch

from truestep.errors import StateError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Path: TypeAlias = tuple[str | int, ...]
Target: TypeAlias = Callable[[Path, tuple[int, ...]], "DTensor | None"]
"""Says for the keys that lead to a tensor, and its shape, how it is to be spread; None for all of it."""


class Box(NamedTuple):
    """Where a part lies in the whole tensor, and how large it is in each dimension."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    def meet(self, other: "Box") -> "Box | None":
        """Return what two boxes have in common; None if that is nothing."""
        bounds = zip(self.offsets, self.sizes, other.offsets, other.sizes, strict=True)
        spans = [(max(a, b), min(a + m, b + n)) for a, m, b, n in bounds]
        if any(begin >= end for begin, end in spans):
            return None
        return Box(tuple(begin for begin, _ in spans), tuple(end - begin for begin, end in spans))

    def within(self, outer: "Box") -> tuple[slice, ...]:
        """Return the slices that cut this box out of a tensor that fills the outer one."""
        starts = [offset - origin for offset, origin in zip(self.offsets, outer.offsets, strict=True)]
        return tuple(slice(start, start + size) for start, size in zip(starts, self.sizes, strict=True))


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one process holds of a tensor: the local memory, where it lies, and the whole tensor's layout."""

    local: torch.Tensor
    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def is_dtensor(value: Any) -> "TypeGuard[DTensor]":
    """Whether a value is a DTensor; does not import what nobody can hold yet (it takes a second)."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def part_of(value: "DTensor", path: str, *, boxes: dict[Any, Box]) -> torch.Tensor | Part:
    """Return this process's part of a DTensor, or a plain tensor if every process has all of it.

    `boxes` remembers where parts of one layout lie: torch takes 0.1 ms to say so, and the loop waits.
    """
    placements = value.placements
    if any(placement.is_partial() for placement in placements):
        raise StateError(
            f"{path} is a DTensor with the placements {placements}: a sum that is still to be taken cannot "
            f"be stored. Redistribute it first."
        )
    with torch.no_grad():  # then the local tensor comes without a place in the graph
        local = value.to_local()
    if all(placement.is_replicate() for placement in placements) or value.device_mesh.size() == 1:
        return local
    layout = (value.device_mesh, placements, value.shape)
    if layout not in boxes:
        boxes[layout] = box_of(value)
    box = boxes[layout]
    return Part(local=local, offsets=box.offsets, shape=tuple(value.shape), stride=tuple(value.stride()))


def box_of(value: "DTensor") -> Box:
    """Return where this process's part of a DTensor lies; the part may be empty."""
    # The protocol by which torch's own checkpoints ask a DTensor for the same.
    (chunk,) = value.__create_chunk_list__()
    return Box(tuple(chunk.offsets), tuple(chunk.sizes))


def spread_like(target: "DTensor", local: torch.Tensor) -> "DTensor":
    """Return a DTensor with the target's mesh and placements around this process's part."""
    from torch.distributed.tensor import DTensor  # noqa: PLC0415  it takes a second; a target has it imported

    return DTensor.from_local(
        local,
        target.device_mesh,
        target.placements,
        run_check=False,  # it would talk to the others
        shape=target.shape,
        stride=target.stride(),
    )


def targets_of(tracked: Mapping[str, Any], *, under: Path = ()) -> Target:
    """Return the `target` that loads states the way the tracked objects are spread over processes now.

    A state of an optimizer goes the way of its parameter if it has the parameter's shape (a fresh optimizer
    has no state to go by); any other tensor goes the way of the DTensor in the same place of the object's
    `state_dict()`. `under` are the keys that lead to the states of the tracked objects.

    Example: `store.load_newest(target=targets_of({"model": model, "optimizer": optimizer}))`
    """
    states: dict[Path, DTensor] = {}
    parameters: dict[Path, DTensor] = {}
    for name, item in tracked.items():
        if isinstance(item, torch.optim.Optimizer):
            in_order = [parameter for group in item.param_groups for parameter in group["params"]]
            found = {index: parameter for index, parameter in enumerate(in_order) if is_dtensor(parameter)}
            parameters |= {(*under, name, "state", index): parameter for index, parameter in found.items()}
        else:
            states |= dict(_dtensors(item.state_dict(), (*under, name)))

    def target(path: Path, shape: tuple[int, ...]) -> "DTensor | None":
        found = states.get(path)
        if found is None:
            found = parameters.get(path[:-1])
        # What has another shape is given whole: whoever loads it knows best how to say that it does not fit.
        return found if found is not None and tuple(found.shape) == tuple(shape) else None

    return target


def _dtensors(state: Any, path: Path) -> "Iterator[tuple[Path, DTensor]]":
    if is_dtensor(state):
        yield path, state
    elif isinstance(state, Mapping):
        for key, item in state.items():
            yield from _dtensors(item, (*path, key))
    elif isinstance(state, list | tuple | deque):
        for index, item in enumerate(state):
            yield from _dtensors(item, (*path, index))
