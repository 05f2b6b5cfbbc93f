"""Comparing what two runs computed, operation by operation.

Owns the first operation whose result differs, how far apart the results are, and where a differing input came
from. Which cause that speaks for is left to `suspects`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from truestep.watch import Operation, Process, values_of

_MAIN = 0
_FROM_OUTSIDE = ("aten.lift_fresh", "aten.set_.")
"""These make a tensor of what Python hands them: `torch.tensor`, `torch.load`."""
_PASSES = ("forward", "backward", "optimizer")


@dataclass(frozen=True, kw_only=True)
class Split:
    """Where two streams part. `flow`: another operation; `result`: same inputs; `input`: other inputs."""

    how: Literal["flow", "result", "input"]
    first: Operation
    second: Operation | None
    inputs: tuple[int, ...] = ()
    """Which inputs differ."""
    output: int = 0
    """The first output that differs."""


def split_steps(first: Sequence[Operation], second: Sequence[Operation]) -> Split | None:
    """As `split`, but without what comes around the passes of a step: a resumed run begins with much else."""
    ours = [operation for operation in first if operation.phase in _PASSES]
    theirs = [operation for operation in second if operation.phase in _PASSES]
    return split(ours, theirs)


def split(first: Sequence[Operation], second: Sequence[Operation]) -> Split | None:
    """Return the first operation of the main thread that differs in its result, or in being there."""
    ours = [operation for operation in first if operation.thread == _MAIN]
    theirs = [operation for operation in second if operation.thread == _MAIN]
    for one, other in zip(ours, theirs, strict=False):
        if (one.name, one.file, one.line) != (other.name, other.file, other.line):
            return Split(how="flow", first=one, second=other)
        outputs = [place for place, pair in enumerate(_outs(one, other)) if pair[0] != pair[1]]
        if not outputs:
            continue
        inputs = tuple(place for place, pair in enumerate(_ins(one, other)) if pair[0] != pair[1])
        is_given = bool(inputs) or one.scalars != other.scalars or one.name.startswith(_FROM_OUTSIDE)
        how: Literal["result", "input"] = "input" if is_given else "result"
        return Split(how=how, first=one, second=other, inputs=inputs, output=outputs[0])
    if len(ours) != len(theirs) and ours and theirs:
        longer, place = (ours, len(theirs)) if len(ours) > len(theirs) else (theirs, len(ours))
        return Split(how="flow", first=longer[place], second=None)
    return None


def _outs(one: Operation, other: Operation) -> Iterator[tuple[object, object]]:
    yield len(one.outs), len(other.outs)
    for ours, theirs in zip(one.outs, other.outs, strict=False):
        yield (ours.digest, ours.shape), (theirs.digest, theirs.shape)


def _ins(one: Operation, other: Operation) -> Iterator[tuple[str, str]]:
    for ours, theirs in zip(one.ins, other.ins, strict=False):
        yield ours.digest, theirs.digest


def writers(operations: Sequence[Operation], operation: Operation, *, place: int) -> Iterator[Operation]:
    """Yield the operations that wrote an input's memory, the latest first, back to the one that made it."""
    by_index = {item.index: item for item in operations}
    producer = operation.ins[place].producer if place < len(operation.ins) else None
    while producer is not None and producer in by_index:
        writer = by_index[producer]
        yield writer
        # What an operation changes in place is its first argument, as a rule of torch's names.
        in_place = writer.name.split(".")[1].endswith("_") if "." in writer.name else False
        producer = writer.ins[0].producer if in_place and writer.ins else None


def distance(first: Process, second: Process, *, found: Split) -> str | None:
    """Return how far the two results are apart, in words."""
    if found.second is None or found.how == "flow" or found.output == 0:
        return None
    place = found.output - 1
    ours, theirs = found.first.outs[place], found.second.outs[place]
    if ours.shape != theirs.shape:
        return f"shapes {tuple(ours.shape)} and {tuple(theirs.shape)}"
    one, other = values_of(first, found.first, place), values_of(second, found.second, place)
    if one is None or other is None or one.shape != other.shape or one.size == 0:
        return None
    return _words_of(one, other, num_all=math.prod(ours.shape))


def _words_of(one: npt.NDArray[Any], other: npt.NDArray[Any], *, num_all: int) -> str:
    differ = one != other
    if one.dtype.kind == "f":
        differ &= ~(np.isnan(one) & np.isnan(other))
    num = int(differ.sum())
    share = f"{num} of {num_all} values differ"
    if one.size < num_all:  # of a large tensor only a sample was kept
        share = f"{num} of {one.size} sampled values differ ({num_all} in all)"
    if one.dtype.kind not in "fiu":
        return share
    apart = np.abs(one.astype(np.float64) - other.astype(np.float64))
    largest = float(np.nanmax(np.where(differ, apart, 0.0), initial=0.0))
    scale = float(np.nanmax(np.abs(one.astype(np.float64)), initial=0.0))
    if one.dtype.kind == "f" and scale > 0 and np.isfinite(scale):
        return f"{share}, by at most {largest:.2g} (largest value {scale:.2g})"
    return f"{share}, by at most {largest:.6g}"
