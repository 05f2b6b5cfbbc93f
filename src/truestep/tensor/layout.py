"""How facts about tensors are worded and laid out: plain text, coloured text, and HTML for notebooks."""

import math
from collections.abc import Iterator
from html import escape
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from truestep.tensor.facts import Account, Broadcast, Jacobian, Operation, Sharing, TensorFacts, words

if TYPE_CHECKING:
    from rich.text import Text

Line = tuple[str, str]
"""What a line is (head, code, note, warning, plain), and its text."""

_WIDTH = 100
_STYLES = {"head": "bold", "code": "", "note": "dim", "warning": "bold yellow", "plain": ""}
_VERDICTS = {
    r"^ *\d+  .*?(?=  )": "bold",
    r"(view of|the same tensor as) .*$": "green",
    r"(copy of .*|new memory)$": "cyan",
    r"in place on .*$": "bold magenta",
}
"""How a step's line is coloured for a terminal: what was written, then what became of memory."""
_CSS = {
    "head": "font-weight:600",
    "code": "font-weight:600;color:#0969da",
    "note": "color:#57606a",
    "warning": "color:#bc4c00;font-weight:600",
    "plain": "",
}


def size_words(num_bytes: int) -> str:
    """Write a number of bytes: `96 B`, `1.5 KiB`."""
    size, units = float(num_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"


# One tensor


def _order(facts: TensorFacts) -> str:
    if facts.expanded_axes:
        return "no, expanded"
    return "channels_last" if facts.is_channels_last else ("yes" if facts.is_contiguous else "no")


def _autograd(facts: TensorFacts) -> str:
    if facts.kind == "array":
        return "NumPy"
    if not facts.requires_grad:
        return "-"
    kind = "parameter, leaf" if facts.kind == "parameter" else "leaf"
    return facts.grad_fn or kind


def _bytes(facts: TensorFacts) -> str:
    if facts.num_bytes == facts.storage_bytes:
        return size_words(facts.num_bytes)
    return f"{size_words(facts.num_bytes)} of {size_words(facts.storage_bytes)}"


def _marks(facts: TensorFacts) -> str:
    marks = [word for word, is_set in (("conj", facts.is_conj), ("neg", facts.is_neg)) if is_set]
    return f" ({', '.join(marks)} bit)" if marks else ""


def _row(facts: TensorFacts) -> list[str]:
    return [
        facts.name,
        str(facts.shape),
        facts.dtype + _marks(facts),
        str(facts.stride),
        str(facts.offset),
        _order(facts),
        _bytes(facts),
        facts.memory if facts.device == "cpu" else f"{facts.memory} on {facts.device}",
        _autograd(facts),
    ]


_HEADINGS = ["", "shape", "dtype", "strides", "offset", "contiguous", "bytes", "memory", "autograd"]


@words.register
def tensor_line(facts: TensorFacts) -> str:
    """Write one tensor in a line."""
    name, shape, dtype, stride, offset, order, num_bytes, memory, autograd = _row(facts)
    return (
        f"{name}: {shape} {dtype}, strides {stride}, offset {offset}, contiguous: {order}, {num_bytes}, "
        f"memory {memory}, {autograd}"
    )


def _table(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


# Two tensors


@words.register
def sharing_line(sharing: Sharing) -> str:
    """Say whether writing to one changes the other."""
    pair = f"{sharing.first} and {sharing.second}"
    if not sharing.is_same_memory:
        return f"{pair} share no memory"
    if sharing.is_one:
        return f"{pair} are one tensor under two names: nothing was copied"
    if not sharing.is_overlapping:
        return (
            f"{pair} are in the same memory, but have no element in common: writing to one leaves the other"
        )
    if not sharing.is_exact:
        return f"{pair} are in the same memory and their ranges overlap: writing to one may change the other"
    num = f"{sharing.num_shared:,} " if sharing.num_shared is not None else ""
    noun = "element" if sharing.num_shared == 1 else "elements"
    return f"{pair} share {num}{noun}: writing to one changes the other"


@words.register
def _broadcast_text(broadcast: Broadcast) -> str:
    return "\n".join(_broadcast_lines(broadcast))


def _broadcast_lines(broadcast: Broadcast) -> list[str]:
    """Align the shapes at the right; `*` marks an axis along which an operand is repeated."""
    ndim = len(broadcast.shape)
    rows = [
        [name, *([""] * (ndim - len(shape))), *map(str, shape)]
        for name, shape in zip(broadcast.names, broadcast.shapes, strict=True)
    ]
    marks = [["*" if axis in axes else "" for axis in range(ndim)] for axes in broadcast.expanded]
    rows.append(["result", *map(str, broadcast.shape)])
    widths = [max(len(row[column]) for row in rows) for column in range(ndim + 1)]
    lines = []
    for row, mark in zip(rows, [*marks, [""] * ndim], strict=True):
        cells = [
            cell.rjust(width) + (sign or " ")
            for cell, width, sign in zip(row[1:], widths[1:], mark, strict=True)
        ]
        lines.append(f"{row[0].ljust(widths[0])}  {' '.join(cells)}".rstrip())
    return [line + "   * repeated" if "*" in line else line for line in lines]


# One operation


def _memory_words(operation: Operation) -> str:
    words = {
        "view": f"view of {operation.of}",
        "copy": f"copy of {operation.of}",
        "in place": f"in place on {operation.of}",
        "same": f"the same tensor as {operation.of}",
        "new": "new memory",
        "none": "no tensor",
    }
    return words[operation.verdict]


def _shapes(operation: Operation) -> str:
    made = " and ".join(str(facts.shape) for facts in operation.outputs[:4])
    made += f" and {len(operation.outputs) - 4} more" if len(operation.outputs) > 4 else ""
    if not operation.inputs:
        return made
    taken = ", ".join(str(facts.shape) for facts in operation.inputs[:4])
    taken += f" and {len(operation.inputs) - 4} more" if len(operation.inputs) > 4 else ""
    return f"{taken} -> {made}" if made else taken


def _operation_notes(operation: Operation) -> Iterator[Line]:
    for note in operation.notes:
        yield "note", note
    if operation.broadcast is not None:
        for line in _broadcast_lines(operation.broadcast):
            yield "plain", f"  {line}"
    for warning in operation.warnings:
        yield "warning", f"careful: {warning}"


@words.register
def operation_text(operation: Operation) -> str:
    """Write one operation: what was written, shapes, memory, and the notes below it."""
    head = f"{operation.number}  {operation.code}  {_shapes(operation)}  {_memory_words(operation)}"
    below = [_wrapped(kind, line, indent="   ") for kind, line in _operation_notes(operation)]
    return "\n".join([head, *(line for lines in below for _, line in lines)])


def _operations(explanation: Account) -> Iterator[Line]:
    rows = [
        [str(step.number), step.code, _shapes(step), _memory_words(step)] for step in explanation.operations
    ]
    if not rows:
        return
    widths = [min(max(len(row[column]) for row in rows), 44) for column in range(4)]
    for row, step in zip(rows, explanation.operations, strict=True):
        yield "code", "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for kind, line in _operation_notes(step):
            yield from _wrapped(kind, line, indent=" " * (widths[0] + 2))


# All of it


def _wrapped(kind: str, line: str, *, indent: str = "") -> Iterator[Line]:
    """Break a sentence where it gets too long; what is aligned is left alone."""
    if kind == "plain":
        yield kind, indent + line
        return
    for part in wrap(line, _WIDTH, initial_indent=indent, subsequent_indent=indent + "  "):
        yield kind, part


def _number(value: float) -> str:
    return f"{value:.4g}"


def _jacobian(jacobian: Jacobian) -> Iterator[Line]:
    yield "head", f"backward with a gradient of ones: vector x Jacobian = gradient of {jacobian.input}"
    cells = [[_number(value) for value in row] for row in (*jacobian.rows, jacobian.product)]
    width = max(len(cell) for row in cells for cell in row)
    rows = [" ".join(cell.rjust(width) for cell in row) for row in cells]
    for value, row in zip(jacobian.vector, rows, strict=False):
        yield "plain", f"  {_number(value)} x [{row}]"
    yield "plain", f"  {' ' * len(_number(1.0))} = [{rows[-1]}]"


def lines(explanation: Account) -> Iterator[Line]:
    """Yield all lines: the operations, the tensors, what they share, notes."""
    yield from _operations(explanation)
    if explanation.result is not None:
        yield "head", f"gives {explanation.result}"
    if explanation.tensors:
        if explanation.operations:
            yield "plain", ""
        head, *rows = _table([_HEADINGS, *(_row(facts) for facts in explanation.tensors)])
        yield "head", head
        yield from (("plain", row) for row in rows)
    tail = [*(str(sharing) for sharing in explanation.sharings), *_alone(explanation)]
    if tail or explanation.notes or explanation.jacobians:
        yield "plain", ""
    yield from (("plain", line) for line in tail)
    for line in explanation.notes:
        yield from _wrapped("note", line)
    for jacobian in explanation.jacobians:
        yield from _jacobian(jacobian)


def _alone(explanation: Account) -> Iterator[str]:
    """Say it of tensors that were put side by side and share nothing."""
    if explanation.code is None and 1 < len(explanation.tensors) <= 4 and not explanation.sharings:
        names = [facts.name for facts in explanation.tensors]
        yield f"{', '.join(names[:-1])} and {names[-1]} share no memory"


def text(explanation: Account) -> str:
    """Write it for a terminal without colours."""
    return "\n".join(line for _, line in lines(explanation))


def rich(explanation: Account) -> "Text":
    """Write it for a terminal with colours."""
    from rich.text import Text  # noqa: PLC0415 - plain text needs no rich

    parts = []
    for kind, line in lines(explanation):
        part = Text(line, style=_STYLES[kind])
        for pattern, style in _VERDICTS.items() if kind == "code" else ():
            part.highlight_regex(pattern, style)
        parts.append(part)
    return Text("\n").join(parts)


def html(explanation: Account) -> str:
    """Write it for a notebook, as tables."""
    pieces = ['<div style="font-family:ui-monospace,Menlo,Consolas,monospace;font-size:13px">']
    if explanation.operations:
        pieces.append(_html_table(["", "step", "shapes", "memory"], list(_html_steps(explanation))))
    if explanation.result is not None:
        pieces.append(f"<p>gives <b>{escape(explanation.result)}</b></p>")
    if explanation.tensors:
        rows = [[escape(cell) for cell in _row(facts)] for facts in explanation.tensors]
        pieces.append(_html_table(_HEADINGS, rows))
    lines = [*(str(sharing) for sharing in explanation.sharings), *_alone(explanation), *explanation.notes]
    if lines:
        pieces.append(f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>")
    blocks = ("\n".join(line for _, line in _jacobian(item)) for item in explanation.jacobians)
    pieces += [f"<pre>{escape(block)}</pre>" for block in blocks]
    return "".join([*pieces, "</div>"])


def _html_steps(explanation: Account) -> Iterator[list[str]]:
    for step in explanation.operations:
        notes = [
            f'<div style="{_CSS[kind]};white-space:pre-wrap">{escape(line)}</div>'
            for kind, line in _operation_notes(step)
        ]
        code = f'<span style="{_CSS["code"]}">{escape(step.code)}</span>'
        words = [
            f'<span style="white-space:nowrap">{escape(text)}</span>'
            for text in (_shapes(step), _memory_words(step))
        ]
        yield [str(step.number), code + "".join(notes), *words]


def _html_table(headings: list[str], rows: list[list[str]]) -> str:
    cell = 'style="text-align:left;padding:2px 12px 2px 0;vertical-align:top;border-bottom:1px solid #d0d7de"'
    head = "".join(f"<th {cell}>{heading}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(f'<td {cell}>{item}</td>' for item in row)}</tr>" for row in rows)
    return f'<table style="border-collapse:collapse;margin:4px 0"><tr>{head}</tr>{body}</table>'


def plain(value: Any) -> Any:
    """Return dictionaries, lists and numbers that JSON knows: no tuples, no complex numbers, no NaN."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    return value
