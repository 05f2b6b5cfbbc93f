"""Reading shapes and strides: which axes broadcast, and which can be walked with one stride."""

from collections.abc import Sequence
from itertools import pairwise, permutations

from truestep.tensor.facts import Broadcast, TensorFacts

_LETTERS = "ijklmnop"


def slices(name: str, *, ndim: int, axes: Sequence[int]) -> str:
    """Write which elements are taken together: `x[i, :, k]` for axis 1 of three.

    >>> slices("x", ndim=3, axes=[1])
    'x[i, :, k]'
    """
    marks = [":" if axis in axes else _LETTERS[axis % len(_LETTERS)] for axis in range(ndim)]
    return f"{name if name.isidentifier() else 'input'}[{', '.join(marks)}]"


def axes_words(axes: Sequence[int]) -> str:
    """Write `axis 1`, `axes 0 and 2`."""
    numbers = [str(axis) for axis in axes]
    if len(numbers) == 1:
        return f"axis {numbers[0]}"
    return f"axes {', '.join(numbers[:-1])} and {numbers[-1]}"


def why_not_view(facts: TensorFacts, new: Sequence[int]) -> str:
    """Return why a tensor cannot be seen in a new shape without copying; empty if there is no reason."""
    kept, product = {1}, 1
    for size in reversed(new):
        product *= size
        kept.add(product)
    shape, stride = facts.shape, facts.stride
    after, joined = 1, None
    for left, right in reversed(list(pairwise(axis for axis, size in enumerate(shape) if size != 1))):
        after *= shape[right]
        if after not in kept and stride[left] != stride[right] * shape[right]:
            joined = left, right  # the first two neighbours that the new shape joins
    if joined is None:
        return ""
    left, right = joined
    return (
        f"the new shape joins axes {left} and {right}, which no single stride walks through: axis {left} "
        f"moves on by {stride[left]}, but {shape[right]} times the stride {stride[right]} of axis {right} is "
        f"{shape[right] * stride[right]}"
    )


def broadcast(operands: Sequence[TensorFacts]) -> Broadcast | None:
    """Return how shapes are aligned; None if all are the same, or do not fit, or there is only one."""
    shapes = [facts.shape for facts in operands]
    if len(set(shapes)) < 2:
        return None
    ndim = max(len(shape) for shape in shapes)
    padded = [(1,) * (ndim - len(shape)) + shape for shape in shapes]
    columns = [set(sizes) - {1} for sizes in zip(*padded, strict=True)]
    if any(len(column) > 1 for column in columns):
        return None
    result = tuple(next(iter(column), 1) for column in columns)
    names = tuple(facts.name for facts in operands)
    return Broadcast(names=names, shapes=tuple(shapes), shape=result, is_silent=is_silent(shapes))


def is_silent(shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether a shorter shape meets the written-out 1 of a longer one, whose axis of its size it lacks.

    (1, N) with (N, 1) was written out by somebody; (N,) with (N, 1) mostly was not.

    >>> is_silent([(4,), (4, 1)]), is_silent([(1, 4), (4, 1)])
    (True, False)
    """
    for short, long in permutations(shapes, 2):
        gap = max(len(long) - len(short), 0)
        new = {size for size in long[:gap] if size > 1}
        met = {mine for mine, other in zip(short, long[gap:], strict=False) if other == 1}
        if new & met:
            return True
    return False
