"""What `explain` finds out, as plain values: tensors, the memory they live in, what they share, operations.

Owns the dataclasses and how they show themselves. How facts are found and worded is left to the files beside.
"""

from dataclasses import dataclass
from functools import singledispatch

Value = int | float | bool | complex


@singledispatch
def words(facts: object) -> str:
    """Return facts in words: `layout` has them for each type."""
    return repr(facts)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """One block of memory in which tensors live: a storage, or what a NumPy array and a tensor share."""

    label: str
    """A, B, C ... in the order in which they were met."""
    device: str
    num_bytes: int
    dtype: str
    """How `values` reads the bytes: the dtype of the first tensor that was met in it."""
    item_bytes: int
    values: tuple[Value, ...] | None
    """Every element from the block's first byte on; None if there are more than 256."""


@dataclass(frozen=True, kw_only=True)
class TensorFacts:
    """One tensor or array: what it looks like, and where in which memory its elements are."""

    name: str
    kind: str
    """"tensor", "parameter" or "array"."""
    shape: tuple[int, ...]
    dtype: str
    device: str
    stride: tuple[int, ...]
    """In elements, as torch says it."""
    offset: int
    """In elements, from the start of the tensor's own storage, as torch says it."""
    memory: str
    """The label of its `Memory`."""
    first_byte: int
    """Where element [0, 0, ...] begins in that memory; the others are `stride * item_bytes` further."""
    item_bytes: int
    num_bytes: int
    """Of its own elements, each counted as often as the shape shows it."""
    storage_bytes: int
    is_contiguous: bool
    is_channels_last: bool
    expanded_axes: tuple[int, ...]
    """Axes of stride 0: all their elements are one cell of memory."""
    requires_grad: bool
    is_leaf: bool
    grad_fn: str | None
    is_conj: bool
    is_neg: bool
    values: tuple[Value, ...] | None
    """The elements in reading order; None if there are more than 256."""

    def __str__(self) -> str:
        return words(self)


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """Whether two tensors live in the same memory, and whether writing to one changes the other."""

    first: str
    second: str
    is_same_memory: bool
    is_overlapping: bool
    """Some byte belongs to an element of both."""
    is_exact: bool
    """False where the layouts were too big to compare cell by cell: then the ranges overlap."""
    num_shared: int | None
    """How many elements of the second have bytes in the first, repeated ones counted once; None: too many."""
    is_one: bool = False
    """Two names for one tensor."""

    def __str__(self) -> str:
        return words(self)


@dataclass(frozen=True, kw_only=True)
class Broadcast:
    """Shapes aligned at the right, and what they become together."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    shape: tuple[int, ...]
    expanded: tuple[tuple[int, ...], ...]
    """For each operand the axes of the result along which it is repeated."""
    is_silent: bool
    """Two operands were each repeated along the other's axis, as (N,) against (N, 1): often a mistake."""

    def __str__(self) -> str:
        return words(self)


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """Which axes an operation walks over, and what is left of them."""

    axes: tuple[int, ...]
    keepdim: bool
    num_elements: int
    """How many elements go into each element of the result."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation that an expression did, as the user wrote it."""

    number: int
    name: str
    code: str
    """The part of the expression that did it."""
    verdict: str
    """"view", "copy", "in place", "same" (the tensor given comes back), "new" or "none" (no tensor)."""
    of: str
    """The tensor that is viewed, copied, written to or given back: a name, or "step 2"."""
    inputs: tuple[TensorFacts, ...]
    outputs: tuple[TensorFacts, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    broadcast: Broadcast | None
    reduction: Reduction | None
    inside: tuple[str, ...]
    """What torch's dispatcher ran for it."""

    def __str__(self) -> str:
        return words(self)


@dataclass(frozen=True, kw_only=True)
class Jacobian:
    """A vector-Jacobian product in numbers: what `y.backward(vector)` adds to `x.grad`."""

    output: str
    input: str
    rows: tuple[tuple[float, ...], ...]
    """One row per element of the output, one column per element of the input."""
    vector: tuple[float, ...]
    product: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Account:
    """All that `explain` found out."""

    code: str | None
    tensors: tuple[TensorFacts, ...]
    """The tensors given, then the names assigned in the expression, then its result."""
    memories: tuple[Memory, ...]
    sharings: tuple[Sharing, ...]
    """One for each pair of `tensors` that lives in the same memory."""
    operations: tuple[Operation, ...]
    jacobians: tuple[Jacobian, ...]
    notes: tuple[str, ...]
    result: str | None
    """What the expression gave, if that is no tensor."""
