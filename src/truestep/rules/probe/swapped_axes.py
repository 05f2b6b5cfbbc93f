"""A reshape swaps two axes where a transpose is meant.

## What it finds
A `view` or `reshape` in a model that exchanges the lengths of two axes of each sample: `(batch, 16, 24)`
becomes `(batch, 24, 16)`. Also one that splits or merges the heads of attention across the positions:
`(batch, positions, heads * width)` becomes `(batch, heads, positions, width)` without a transpose. The same
for pictures and tokens: `(batch, channels, height, width)` becomes `(batch, positions, channels)`.

## Why it matters
A reshape keeps the order of the numbers in memory. It does not move an axis. Each new row is cut from the end
of one channel and the start of the next, so positions and channels are mixed. Shapes fit, and the loss falls.

## How to fix
Move axes with `transpose(1, 2)` or `permute`. To split heads use `view(batch, positions, heads,
width).transpose(1, 2)`, to merge them `transpose(1, 2).reshape(batch, positions, heads * width)`.
"""

import ast
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.syntax import walk
from truestep.rules.kit.where import covers, name_of
from truestep.watch import Operation
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.passes import ForwardPass

RULE = Meta(
    code="PROBE12",
    severity="warning",
    needs=(ForwardPass, OptimizerStep),
    fix="Move the axes with transpose or permute before the reshape.",
)
_RESHAPES = frozenset({"view", "reshape"})
_LENGTHS = frozenset({"shape", "size"})
_SEQUENCES = 3
_MOVES = frozenset({"transpose", "permute", "swapaxes", "movedim", "t", "mT", "T", "einsum", "rearrange"})


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find reshapes whose lengths are those of a transpose."""
    at_line: dict[tuple[str, int, int, int], list[Operation]] = {}
    for item in evidence.operations:
        is_view = item.kind in ("view", "_unsafe_view", "reshape") and item.ins and item.outs
        if not (is_view and item.file and item.line):
            continue
        before, after = item.ins[0].shape, item.outs[0].shape
        is_learned = item.ins[0].has_grad or len(before) == len(after) == _SEQUENCES
        if (item.phase == "forward" and is_learned and before != after) or _is_flat_scores(evidence, item):
            at_line.setdefault((item.file, item.line, len(before), len(after)), []).append(item)
    for (file, line, *_), items in at_line.items():
        swapped = [_swap(item) for item in items]
        before, after = items[0].ins[0].shape, items[0].outs[0].shape
        may_count = len(before) != len(after) or len(before) > _SEQUENCES
        if not all(swapped) or not _is_written(evidence, file, line, may_count=may_count):
            continue
        yield Finding.at(
            items[0],
            "this reshape has the shape of a transpose, but does not move the axes",
            count=len(items),
            evidence=f"{list(before)} becomes {list(after)}: {swapped[0]}. {_moved(before, after)}",
        )


def _is_flat_scores(evidence: Evidence, item: Operation) -> bool:
    """Whether scores with classes as axis 1 become rows, whose classes are then compared with labels."""
    if not item.ins[0].has_grad or not _are_flat_scores(item.ins[0].shape, item.outs[0].shape):
        return False
    users = evidence.flow.users(item) or evidence.flow.users(evidence.flow.maker(item.ins[0]) or item)
    shape = item.outs[0].shape
    return any(user.kind == "_log_softmax" and user.ins[0].shape == shape for user in users)


def _are_flat_scores(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Whether `(batch, classes, places)` or a picture of them becomes `(batch * places, classes)`."""
    is_flat = len(before) in (3, 4) and len(after) == 2 and after[1] == before[1] > 1 and before[0] > 1
    return is_flat and before[-1] != before[1] and after[0] > before[0]


def _swap(item: Operation) -> str | None:
    """Return which axes of a sample exchange their lengths, in words."""
    before, after = item.ins[0].shape, item.outs[0].shape
    if _are_flat_scores(before, after):
        return f"the {before[1]} classes are axis 1 before and the last axis after it"
    if (
        len(before) == _SEQUENCES
        and after == (before[1], before[0], before[2])
        and before[0] != before[1] > 1
    ):
        return f"axes 0 and 1 exchange their lengths {before[0]} and {before[1]}"
    if before[:1] != after[:1] or before[0] < 2:
        return None
    return _swap_in_sample(before[1:], after[1:])


def _swap_in_sample(old: tuple[int, ...], new: tuple[int, ...]) -> str | None:
    if len(old) == len(new) == 2 and old == new[::-1] and old[0] != old[1] and min(old) > 1:
        return f"axes 1 and 2 exchange their lengths {old[0]} and {old[1]}"
    if len(old) == len(new) == 3 and old == (new[1], new[0], new[2]) and old[0] != old[1]:
        return f"axes 1 and 2 exchange their lengths {old[0]} and {old[1]}" if min(old[:2]) > 1 else None
    if len(old) == 2 and len(new) == 3:
        return _heads(positions=old[0], whole=old[1], parts=new) or _grid(old, new)
    if len(old) == 3 and len(new) == 2:
        return _heads(positions=new[0], whole=new[1], parts=old) or _grid(new, old)
    return None


def _grid(rows: tuple[int, ...], grid: tuple[int, ...]) -> str | None:
    """Compare rows of positions with a picture whose channels come first."""
    positions, channels = rows
    is_same = grid[0] == channels and grid[1] * grid[2] == positions
    if is_same and positions != channels and min(rows) > 1:
        return f"the {channels} channels are the first axis on one side and the last on the other"
    return None


def _heads(*, positions: int, whole: int, parts: tuple[int, ...]) -> str | None:
    heads, middle, width = parts
    is_split = middle == positions and heads * width == whole
    if is_split and positions not in (heads, 1) and heads > 1 and width > 1:
        return f"{heads} heads of width {width} lie before the {positions} positions, not after them"
    return None


def _moved(before: tuple[int, ...], after: tuple[int, ...]) -> str:
    """Say where one number goes: into the second row of the result."""
    if _are_flat_scores(before, after):
        return f"The first row of the result is {after[1]} values of class 0"
    place = after[-1]  # the first number of the second row, counted through the sample
    found = []
    for length in reversed(before[1:]):
        found.append(place % length)
        place //= length
    start = [0] * (len(after) - 2) + [0]
    start[-2] = 1
    return f"Position {start} of a sample is read from {found[::-1]}, where a transpose would read another"


def _is_written(evidence: Evidence, file: str, line: int, *, may_count: bool) -> bool:
    """Whether the user's own line reshapes, and moves no axis.

    Where it computes lengths, it may put two rows together: `view(batch, length // 2, 2 * width)`.
    """
    source = evidence.source(file)
    if source is None:
        return False
    statements = [
        node
        for node in walk(source.tree)
        if isinstance(node, ast.stmt) and covers(node, line) and not hasattr(node, "body")
    ]
    nodes = [node for statement in statements for node in walk(statement)]
    lengths = {id(node) for one in nodes if name_of(one) in _LENGTHS for node in walk(one)}
    names = {name_of(node) for node in nodes if name_of(node) in _RESHAPES or id(node) not in lengths}
    is_counted = any(isinstance(node, ast.BinOp) for node in nodes)
    return bool(names & _RESHAPES) and not names & _MOVES and (may_count or not is_counted)
