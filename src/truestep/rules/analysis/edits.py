"""Mending a script: changes of lines that rules propose, shown as a diff and written only when asked.

Owns applying them. Which change fixes what is in each rule's own file, as `make_edits(source, finding)`.
"""

import ast
import difflib
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from truestep.rules.analysis.places import calls, covers
from truestep.rules.analysis.syntax import walk
from truestep.rules.evidence import Source


@dataclass(frozen=True, kw_only=True)
class Edit:
    """New text for the lines from `first` to `last`; with `last` before `first` it is put in before them."""

    first: int
    last: int
    lines: tuple[str, ...]


def insert_before(source: Source, line: int, *texts: str) -> list[Edit]:  # limits: texts are lines
    """Return lines put in before a line, indented as it is."""
    indent = indent_of(source, line)
    return [Edit(first=line, last=line - 1, lines=tuple(indent + text for text in texts))]


def insert_after(source: Source, line: int, *texts: str) -> list[Edit]:  # limits: texts are lines
    """Return lines put in after the statement that a line belongs to, indented as it is."""
    statement = statement_at(source, line)
    if statement is None:
        return []
    indent = indent_of(source, statement.lineno)
    after = (statement.end_lineno or statement.lineno) + 1
    return [Edit(first=after, last=after - 1, lines=tuple(indent + text for text in texts))]


def call_at(source: Source, line: int | None, *, name: str) -> ast.Call | None:
    """Return the call of a method or function of that name which stands on a line."""
    around = (call for call in calls(source.tree, name) if covers(call, line))
    return next(around, None)


def last_argument(call: ast.Call) -> ast.expr:
    """Return what a call with arguments is given last, as it is written."""
    given = [*call.args, *(item.value for item in call.keywords)]
    return max(given, key=lambda node: (node.lineno, node.col_offset))


def replace_node(source: Source, node: ast.expr, *, text: str) -> list[Edit]:
    """Return a change that puts a text in the place of an expression."""
    last = node.end_lineno or node.lineno
    before = source.line(node.lineno).encode()[: node.col_offset].decode()
    after = source.line(last).encode()[node.end_col_offset or 0 :].decode()
    return [Edit(first=node.lineno, last=last, lines=(before + text + after,))]


def text_of(source: Source, node: ast.expr) -> str:
    """Return an expression as it is written."""
    return ast.get_source_segment(source.text, node) or ast.unparse(node)


def copy_node(source: Source, node: ast.expr) -> list[Edit]:
    """Return changes that put `copy.deepcopy()` around an expression, and import it if nothing does yet."""
    plain = [item for item in source.tree.body if isinstance(item, ast.Import)]
    names = {alias.asname or alias.name for item in plain for alias in item.names}
    others = [item for item in source.tree.body if isinstance(item, ast.ImportFrom)]
    imports = [*plain, *(item for item in others if item.module != "__future__")]
    if "copy" not in names and not imports:
        return []
    edits = replace_node(source, node, text=f"copy.deepcopy({text_of(source, node)})")
    return (
        edits
        if "copy" in names
        else [*insert_before(source, min(item.lineno for item in imports), "import copy"), *edits]
    )


def drop_statement(source: Source, statement: ast.stmt) -> list[Edit]:
    """Return a change that takes a statement away, and leaves `pass` if it was the only one of its block."""
    last = statement.end_lineno or statement.lineno
    blocks = (
        block
        for node in walk(source.tree)
        for name in ("body", "orelse", "finalbody")
        if isinstance(block := getattr(node, name, None), list) and statement in block
    )
    is_alone = any(len(block) == 1 for block in blocks)
    lines = (indent_of(source, statement.lineno) + "pass",) if is_alone else ()
    return [Edit(first=statement.lineno, last=last, lines=lines)]


def around(source: Source, line: int | None, *kinds: type[ast.AST]) -> Any:
    """Return the innermost node of these kinds that a line lies in, its first line not counted; or None."""
    found = [
        node
        for node in walk(source.tree)
        if isinstance(node, kinds) and node.lineno < (line or 0) <= (node.end_lineno or 0)  # type: ignore[attr-defined]
    ]
    return max(found, key=lambda node: node.lineno, default=None)  # type: ignore[attr-defined]


def put_under(source: Source, statement: ast.stmt, *, header: str) -> list[Edit]:
    """Return a change that puts a statement under a header such as `with torch.no_grad():`."""
    first, last = statement.lineno, statement.end_lineno or statement.lineno
    has_text = any(
        isinstance(node, ast.Constant) and isinstance(node.value, str) and node.end_lineno != node.lineno
        for node in walk(statement)
    )
    if has_text:  # its lines would be changed, too
        return []
    lines = [source.line(number) for number in range(first, last + 1)]
    moved = ["    " + line if line.strip() else line for line in lines]
    return [Edit(first=first, last=last, lines=(indent_of(source, first) + header, *moved))]


def indent_of(source: Source, line: int) -> str:
    """Return the white space at a line's beginning."""
    text = source.line(line)
    return text[: len(text) - len(text.lstrip())]


def statement_at(source: Source, line: int) -> ast.stmt | None:
    """Return the innermost statement that a line belongs to."""
    around = [node for node in walk(source.tree) if isinstance(node, ast.stmt) and covers(node, line)]
    return max(around, key=lambda node: node.lineno, default=None)


def apply(source: Source, edits: Iterable[Edit]) -> str:
    """Return the text with all changes made; those that overlap an earlier one are left out."""
    lines = io.StringIO(source.raw, newline="").readlines()
    end = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    is_open = bool(lines) and not lines[-1].endswith(("\r", "\n"))
    if is_open:  # what is put in after it must not run on in the same line
        lines[-1] += end
    taken: set[int] = set()
    for edit in sorted(dict.fromkeys(edits), key=lambda item: (-item.first, -item.last)):
        touched = set(range(edit.first, edit.last + 1))
        if touched & taken:
            continue
        taken |= touched
        lines[edit.first - 1 : edit.last] = [text.replace("\n", end) + end for text in edit.lines]
    text = "".join(lines)
    return text.removesuffix(end) if is_open else text


def diff(source: Source, changed: str, *, name: str) -> Iterator[str]:
    """Yield the lines of a unified diff."""
    before, after = source.lines, Source(source.path, changed).lines
    yield from difflib.unified_diff(
        before, after, f"a/{name.lstrip('/')}", f"b/{name.lstrip('/')}", lineterm="", n=2
    )


def patch(source: Source, changed: str, *, name: str) -> str:
    """Return a unified diff that `patch` and `git apply` take: exact ends of lines, three lines around."""
    before, after = (io.StringIO(text, newline="\n").readlines() for text in (source.raw, changed))
    plain = name.lstrip("/")
    lines = difflib.unified_diff(before, after, f"a/{plain}", f"b/{plain}")
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
