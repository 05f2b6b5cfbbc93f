"""What `explain` finds out, as plain values that print themselves: tensors, what they share, operations."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from textwrap import wrap
from typing import Any

_WIDTH = 100
_HEADINGS = ["", "shape", "dtype", "strides", "offset", "contiguous", "bytes", "memory", "autograd"]


@dataclass(frozen=True, kw_only=True)
class TensorFacts:
    """One tensor or array: what it looks like, and where in which memory its elements are."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    stride: tuple[int, ...]
    """In elements, as torch counts them."""
    offset: int
    """In elements, from the start of the tensor's own storage, as torch counts them."""
    memory: str
    """A, B, C ... for each block of memory, in the order in which they were met."""
    num_bytes: int
    """Of its own elements, each counted as often as the shape shows it."""
    storage_bytes: int
    is_contiguous: bool
    expanded_axes: tuple[int, ...]
    """Axes of stride 0: all their elements are one cell of memory."""
    autograd: str
    """`leaf`, `parameter, leaf`, the name of its `grad_fn`, `-` without a gradient, `NumPy`."""

    @property
    def row(self) -> list[str]:
        """Return the cells of a table, in the order of its headings."""
        own, whole = size_words(self.num_bytes), size_words(self.storage_bytes)
        return [
            self.name,
            str(self.shape),
            self.dtype,
            str(self.stride),
            str(self.offset),
            "no, expanded" if self.expanded_axes else "yes" if self.is_contiguous else "no",
            own if self.num_bytes == self.storage_bytes else f"{own} of {whole}",
            self.memory if self.device == "cpu" else f"{self.memory} on {self.device}",
            self.autograd,
        ]


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """Two tensors that live in the same memory, and whether writing to one changes the other."""

    first: str
    second: str
    is_overlapping: bool
    """Some byte belongs to an element of both."""
    is_one: bool = False
    """Two names for one tensor."""

    def __str__(self) -> str:
        pair = f"{self.first} and {self.second}"
        if self.is_one:
            return f"{pair} are one tensor under two names: nothing was copied"
        if self.is_overlapping:
            return f"{pair} share elements: writing to one changes the other"
        return f"{pair} are in the same memory and share no element: writing to one leaves the other"


@dataclass(frozen=True, kw_only=True)
class Broadcast:
    """Shapes aligned at the right, and what they become together."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    shape: tuple[int, ...]
    is_silent: bool
    """Two operands were each repeated along the other's axis, as (N,) against (N, 1): often a mistake."""

    def __str__(self) -> str:
        """Align the shapes at the right; `*` marks an axis along which an operand is repeated."""
        rows = []
        for name, shape in zip(self.names, self.shapes, strict=True):
            sizes = [""] * (len(self.shape) - len(shape)) + [str(size) for size in shape]
            pairs = zip(sizes, self.shape, strict=True)
            marked = [size + (" " if size == str(whole) else "*") for size, whole in pairs]
            rows.append([name, *marked])
        rows.append(["result", *(f"{size} " for size in self.shape)])
        widths = [max(len(row[column]) for row in rows) for column in range(len(self.shape) + 1)]
        lines = []
        for name, *cells in rows:
            aligned = " ".join(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
            line = f"{name.ljust(widths[0])}  {aligned}".rstrip()
            lines.append(line + "   * repeated" if "*" in line else line)
        return "\n".join(lines)


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

    @property
    def row(self) -> list[str]:
        """Return its number, code, shapes, and what happened to memory."""
        made, taken = _shapes(self.outputs, " and "), _shapes(self.inputs, ", ")
        memory = {
            "new": "new memory",
            "none": "no tensor",
            "same": "the same tensor as",
            "in place": "in place on",
        }.get(self.verdict, f"{self.verdict} of")
        return [
            str(self.number),
            self.code,
            " -> ".join(part for part in (taken, made) if part),
            f"{memory} {self.of}".rstrip(),
        ]

    def below(self, indent: str) -> Iterator[str]:
        """Yield the lines that stand below it: notes, how shapes were aligned, warnings."""
        for note in self.notes:
            yield from wrap(note, _WIDTH, initial_indent=indent, subsequent_indent=indent + "  ")
        if self.broadcast is not None:
            yield from (f"{indent}  {line}" for line in str(self.broadcast).splitlines())
        for warning in self.warnings:
            text = f"careful: {warning}"
            yield from wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent + "  ")

    def __str__(self) -> str:
        return "\n".join(["  ".join(self.row), *self.below("   ")])


@dataclass(frozen=True, kw_only=True, repr=False)
class Explanation:
    """All that `explain` found out: print it, or read its fields."""

    code: str | None
    tensors: tuple[TensorFacts, ...]
    """The tensors given, then the names assigned in the expression, then its result."""
    sharings: tuple[Sharing, ...]
    """One for each pair of `tensors` that lives in the same memory."""
    operations: tuple[Operation, ...]
    notes: tuple[str, ...]
    result: str | None
    """What the expression gave, if that is no tensor."""

    def as_fields(self) -> dict[str, Any]:
        """Return all of it as plain dictionaries, lists and numbers, fit for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    __repr__ = __str__  # for notebooks

    def _lines(self) -> Iterator[str]:
        heads = _aligned([step.row for step in self.operations], widest=44)
        for step, head in zip(self.operations, heads, strict=True):
            yield head
            yield from step.below(" " * (len(str(len(self.operations))) + 2))
        if self.result is not None:
            yield f"gives {self.result}"
        if self.tensors:
            if self.operations:
                yield ""
            yield from _aligned([_HEADINGS, *(facts.row for facts in self.tensors)])
        tail = [*map(str, self.sharings), *self.notes]
        if tail:
            yield from ("", *tail)


def listed(words: list[str]) -> str:
    """Write `x, y and z`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def size_words(num_bytes: int) -> str:
    """Write a number of bytes: `96 B`, `1.5 KiB`."""
    size, units = float(num_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"


def _shapes(facts: tuple[TensorFacts, ...], joint: str) -> str:
    return joint.join(str(item.shape) for item in facts)


def _aligned(rows: list[list[str]], widest: int = 1000) -> list[str]:
    if not rows:
        return []
    widths = [min(max(len(row[column]) for row in rows), widest) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
