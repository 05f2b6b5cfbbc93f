"""Operations: what torch was asked to compute in the steps that are looked at closely.

Owns their rows, and which values are kept of what they gave.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import starmap
from operator import attrgetter
from typing import Any, NamedTuple

Site = tuple[str | None, int | None, str | None]
"""File, line and function."""

PHASES = ("other", "setup", "data", "forward", "backward", "optimizer")
"""Where in training an operation is called."""

IS_RANDOM, HAS_GENERATOR, IS_UNINITIALISED, IN_EVALUATION, IS_FOREIGN = 1, 2, 4, 8, 16
_MAX_WHOLE_BYTES, _MAX_SAMPLED = 256 * 1024, 32_768


class In(NamedTuple):
    """A tensor that went in. The digest is empty where an operation writes without reading."""

    digest: str
    producer: int | None
    """The operation that last wrote this memory; None if no operation in the window did."""
    shape: tuple[int, ...] = ()
    has_grad: bool = False
    """Whether gradients flow back into it. Shape and this are there if the plan reads no digests."""
    memory: int = 0
    """Where no operation in the window wrote it: equal for tensors that may share memory. 0 if not known."""


class Out(NamedTuple):
    """A tensor that came out, or was changed. The digest is empty if its memory was not read."""

    digest: str
    dtype: str
    shape: tuple[int, ...]
    offset: int | None
    """Where its values are; None for views, for what was not read, and once the file is full."""
    worst: str | None = None
    """The worst value in it: `finite`, `infinite` or `nan`; None if the plan did not ask."""


@dataclass(kw_only=True, slots=True)
class Row:
    """One operation as it is written: names and lines are numbers of the tables."""

    index: int
    thread: int
    step: int
    name: int
    site: int
    outer: int
    phase: int
    module: int
    origin: int = 0
    node: int = 0
    flags: int = 0
    scalars: str = ""
    ins: list[In] = field(default_factory=list)
    outs: list[Out] = field(default_factory=list)

    def written(self) -> tuple[Any, ...]:
        """Return all fields, in their order."""
        fields: tuple[Any, ...] = _in_order(self)
        return fields

    @staticmethod
    def read(written: list[Any]) -> "Row":
        """Return what `written` gave, after it was JSON."""
        row = Row(**dict(zip(_FIELDS, written, strict=True)))
        row.ins = [item._replace(shape=tuple(item.shape)) for item in starmap(In, row.ins)]
        row.outs = [item._replace(shape=tuple(item.shape)) for item in map(Out._make, row.outs)]
        return row


_FIELDS = tuple(item.name for item in fields(Row))
_in_order = attrgetter(*_FIELDS)


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation: who asked for it, and digests of what went in and came out."""

    index: int
    """Its place among all operations of the process, in the order in which they began."""
    thread: int
    """0 is the main one; others are numbered as they were started."""
    step: int
    name: str
    """As torch names it, `aten.mm.default`; or `ScaleBackward` for a backward pass written by hand."""
    file: str | None
    line: int | None
    function: str | None
    outer_file: str | None
    outer_line: int | None
    """In threads but the main one: the outermost line of the user's, that of the thread's function."""
    phase: str
    module: str
    """The path of the innermost module that is being called, seen from the outermost; else empty."""
    forward_name: str | None
    """In a backward pass: the operation of the forward pass whose gradient this is, and where it was."""
    forward_file: str | None
    forward_line: int | None
    forward_module: str | None
    node: str | None
    """The node of autograd that is at work."""
    is_random: bool
    """Whether it drew from a generator."""
    has_generator: bool
    """Whether it was given one."""
    is_uninitialised: bool
    """Whether it made memory that was not written yet."""
    in_evaluation: bool = False
    """Whether the innermost module was not in training mode. This and the next: if no digests are read."""
    is_foreign: bool = False
    """Whether the innermost module is in training mode since `eval()` of the outermost did not reach it."""
    ins: tuple[In, ...]
    scalars: str
    """Its arguments as text, a tensor as `T`."""
    outs: tuple[Out, ...]

    @cached_property
    def kind(self) -> str:
        """What it computes, in place or not: `add` for `aten.add_.Tensor`."""
        parts = self.name.split(".")
        return parts[1].rstrip("_") if len(parts) > 1 else self.name

    @property
    def is_in_place(self) -> bool:
        """Whether it writes to what it is given."""
        return self.name.split(".")[1:2] == [f"{self.kind}_"]

    @property
    def given(self) -> tuple[Any, ...]:
        """Its arguments by position: numbers, texts and lists of them; `T` for a tensor."""
        return self._arguments[0]

    @property
    def options(self) -> dict[str, Any]:
        """Its arguments by name, without those that are None."""
        return self._arguments[1]

    @cached_property
    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        try:
            call: Any = ast.parse(f"f({self.scalars})", mode="eval").body
        except SyntaxError:  # a long text is cut
            return (), {}
        return tuple(map(_value_of, call.args)), {item.arg: _value_of(item.value) for item in call.keywords}


def _value_of(node: ast.expr) -> Any:
    """Return a number, a text or a list of them from a text; names and all else stay texts."""
    match node:
        case ast.Constant():
            return node.value
        case ast.List():
            return [_value_of(item) for item in node.elts]
        case ast.Name(id="inf" | "nan"):
            return float(node.id)
        case ast.UnaryOp(op=ast.USub()):
            return -_value_of(node.operand)
    return ast.unparse(node)


def stride_of(num: int, itemsize: int) -> int:
    """Return the step at which a tensor's elements are kept: 1 keeps all."""
    return 1 if num * itemsize <= _MAX_WHOLE_BYTES else -(-num // _MAX_SAMPLED)


@dataclass(kw_only=True)
class TableReader:
    """What rows of operations refer to by numbers."""

    texts: list[str] = field(default_factory=lambda: [""])
    places: list[Site] = field(default_factory=lambda: [(None, None, None)])
    origins: list[tuple[int, int, int]] = field(default_factory=lambda: [(0, 0, 0)])

    def read(self, line: dict[str, Any]) -> Iterator[Operation]:
        """Yield the operations of a line of evidence."""
        self.texts.extend(line["texts"])
        self.places.extend((file, number, function) for file, number, function in line["sites"])
        self.origins.extend((name, site, module) for name, site, module in line["origins"])
        for row in line["rows"]:
            yield self.operation(Row.read(row))

    def operation(self, row: Row) -> Operation:
        """Return one of them with its texts and lines."""
        texts, places = self.texts, self.places
        forward_name, forward_site, forward_module = self.origins[row.origin]
        return Operation(
            index=row.index,
            thread=row.thread,
            step=row.step,
            name=texts[row.name],
            file=places[row.site][0],
            line=places[row.site][1],
            function=places[row.site][2],
            outer_file=places[row.outer][0],
            outer_line=places[row.outer][1],
            phase=PHASES[row.phase],
            module=texts[row.module],
            forward_name=texts[forward_name] if row.origin else None,
            forward_file=places[forward_site][0],
            forward_line=places[forward_site][1],
            forward_module=texts[forward_module] if row.origin else None,
            node=texts[row.node] or None,
            is_random=bool(row.flags & IS_RANDOM),
            has_generator=bool(row.flags & HAS_GENERATOR),
            is_uninitialised=bool(row.flags & IS_UNINITIALISED),
            in_evaluation=bool(row.flags & IN_EVALUATION),
            is_foreign=bool(row.flags & IS_FOREIGN),
            ins=tuple(row.ins),
            scalars=row.scalars,
            outs=tuple(row.outs),
        )
