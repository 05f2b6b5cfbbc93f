"""Mending a script: changes of lines that rules propose, shown as a diff and written only when asked.

Owns applying them. Which change fixes what is in each rule's own file, as `make_edits(source, finding)`.
"""

import ast
import difflib
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from truestep.rules.evidence import Source
from truestep.rules.kit.bindings import Function, Loop, is_bound, suites, turn_of
from truestep.rules.kit.syntax import walk
from truestep.rules.kit.where import calls, covers, innermost, name_of, nodes

_MODES = frozenset(("eval", "train", "requires_grad_", "set_grad_enabled", "no_grad", "inference_mode"))


@dataclass(frozen=True, kw_only=True)
class Edit:
    """New text for the lines from `first` to `last`; with `last` before `first` it is put in before them."""

    first: int
    last: int
    lines: tuple[str, ...]


def insert_before(source: Source, statement: ast.stmt | None, *texts: str) -> list[Edit]:
    """Return statements put in before another, in its block; nothing if a name has no value there."""
    if statement is None or not _may_insert(source, statement, texts):
        return []
    first = first_line(statement)
    start, _ = _beside(source, statement)
    if not start.strip() and not source.line(first - 1).endswith("\\"):
        lines = tuple(indent_of(source, statement.lineno) + text for text in texts)
        return [Edit(first=first, last=first - 1, lines=lines)]
    rest = source.line(statement.lineno).removeprefix(start)
    return [Edit(first=first, last=first, lines=(start + "; ".join((*texts, rest)),))]


def insert_after(source: Source, statement: ast.stmt | None, *texts: str) -> list[Edit]:
    """Return statements put in after another, in its block; nothing if a name has no value there."""
    if statement is None or not _may_insert(source, statement, texts):
        return []
    last = statement.end_lineno or statement.lineno
    start, rest = _beside(source, statement)
    if not start.strip() and not rest.partition("#")[0].strip():
        lines = tuple(indent_of(source, statement.lineno) + text for text in texts)
        return [Edit(first=last + 1, last=last, lines=lines)]
    own = source.line(last).removesuffix(rest)
    return [Edit(first=last, last=last, lines=("; ".join((own, *texts)) + rest,))]


def _beside(source: Source, node: ast.stmt | ast.expr) -> tuple[str, str]:
    """Return what stands before a node in its first line, and after it in its last one."""
    before = source.line(node.lineno).encode()[: node.col_offset].decode()
    after = source.line(node.end_lineno).encode()[node.end_col_offset or 0 :].decode()
    return before, after


def _may_insert(source: Source, statement: ast.stmt, texts: Sequence[str]) -> bool:
    return is_bound(source.tree, statement, names=names_in(ast.parse("\n".join(texts))))


def decorate(source: Source, function: ast.FunctionDef, *, text: str) -> list[Edit]:
    """Return a decorator put above a function and those that it has."""
    first = first_line(function)
    return [Edit(first=first, last=first - 1, lines=(indent_of(source, function.lineno) + text,))]


def is_local(source: Source, edits: Iterable[Edit], *, line: int | None) -> bool:
    """Return whether edits provably change nothing but what runs at a finding's line.

    Allowed are a new expression inside the statement at that line, a new call in the same turn of the same
    loop or function, and an import of a name that the file does not use otherwise. All names must be bound
    there. Whatever goes away, moves, is decorated or indented, or switches a mode is not local.
    """
    after = Source(source.path, apply(source, edits))
    found = statements_at(source, line)
    changes = list(_changes(source.tree.body, after.tree.body, turn=source.tree))
    if not found or not changes or not after.tree.body:
        return False
    turn = turn_of(source.tree, found[-1])
    return all(_is_local_change(after, change, line=line or 0, turn=turn) for change in changes)


class _Change(NamedTuple):
    """Statements of a block, and what they become."""

    before: list[ast.stmt]
    after: list[ast.stmt]
    turn: ast.AST
    """The loop or function around them."""


def _changes(before: list[ast.stmt], after: list[ast.stmt], *, turn: ast.AST) -> Iterator[_Change]:
    old, new = ([ast.dump(item) for item in block] for block in (before, after))
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "replace" and b - a == d - c:
            for pair in zip(before[a:b], after[c:d], strict=True):
                yield from _changes_inside(*pair, turn=turn)
        elif tag != "equal":
            yield _Change(before[a:b], after[c:d], turn)


def _changes_inside(before: ast.stmt, after: ast.stmt, *, turn: ast.AST) -> Iterator[_Change]:
    blocks, others = list(suites(before)), list(suites(after))
    if not blocks or len(blocks) != len(others) or _head(before) != _head(after):
        yield _Change([before], [after], turn)
        return
    inner = before if isinstance(before, Loop | Function) else turn
    for pair in zip(blocks, others, strict=True):
        yield from _changes(*pair, turn=inner)


def _head(statement: ast.AST) -> list[str]:
    """Return what belongs to a compound statement itself."""
    found = []
    for _, value in ast.iter_fields(statement):
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, ast.excepthandler | ast.match_case):
                found += _head(item)
            elif not isinstance(item, ast.stmt):
                found.append(ast.dump(item) if isinstance(item, ast.AST) else repr(item))
    return found


def _is_local_change(after: Source, change: _Change, *, line: int, turn: ast.AST | None) -> bool:
    if not change.before:
        return all(_is_new_import(after, item) for item in change.after) or (
            change.turn is turn and all(_is_plain_call(after, item) for item in change.after)
        )
    if len(change.before) != 1 or len(change.after) != 1:
        return False
    (old,), (new,) = change.before, change.after
    names = names_in(new) - names_in(old)
    return (
        type(old) is type(new)
        and not nodes(old, ast.NamedExpr)  # what it names is used elsewhere
        and old.lineno <= line <= _end_of_head(old)
        and _bodies(old) == _bodies(new)
        and not _switches(new) > _switches(old)
        and is_bound(after.tree, new, names=names - _imported(after))
    )


def _is_plain_call(after: Source, item: ast.stmt) -> bool:
    is_call = isinstance(item, ast.Expr) and isinstance(item.value, ast.Call)
    return is_call and not _switches(item) and is_bound(after.tree, item, names=names_in(item))


def _is_new_import(after: Source, item: ast.stmt) -> bool:
    """Whether it is an import at the top of a file in which its name was not bound before."""
    if not isinstance(item, ast.Import) or item not in after.tree.body:
        return False
    names = {alias.asname or alias.name for alias in item.names}
    stored = (node.id for node in walk(after.tree) if isinstance(node, ast.Name) and not _is_read(node))
    given = (node.arg for node in walk(after.tree) if isinstance(node, ast.arg))
    return not names & {*stored, *given}


def _imported(after: Source) -> set[str]:
    plain = (item for item in after.tree.body if isinstance(item, ast.Import))
    return {alias.asname or alias.name for item in plain for alias in item.names}


def _is_read(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Load)


def _bodies(statement: ast.stmt) -> list[str]:
    return [ast.dump(item) for block in suites(statement) for item in block]


def _end_of_head(statement: ast.stmt) -> int:
    first = min((block[0].lineno - 1 for block in suites(statement)), default=statement.end_lineno)
    return max(statement.lineno, first or 0)


def _switches(node: ast.AST) -> int:
    """Return how many calls change how a model runs for all who call it, or sort what may have no order."""
    made = nodes(node, ast.Call)
    given = [call.args[0] for call in made if name_of(call.func) == "sorted" and call.args]
    unordered = [item for item in given if not isinstance(item, ast.Call) or is_set(item)]
    return len(unordered) + [name_of(call.func) in _MODES for call in made].count(True)


def is_set(node: ast.expr) -> bool:
    """Return whether an expression makes a set."""
    made = name_of(node.func) if isinstance(node, ast.Call) else None
    return isinstance(node, ast.Set | ast.SetComp) or made in ("set", "frozenset")


def names_in(node: ast.AST) -> set[str]:
    """Return what an expression or a statement reads: names, and dotted paths such as `self.optimizer`."""
    found = (item for item in walk(node) if isinstance(item, ast.Name | ast.Attribute))
    owners = {id(call.func): call.func for call in walk(node) if isinstance(call, ast.Call)}
    paths = (item.value if isinstance(item, ast.Attribute) and id(item) in owners else item for item in found)
    return {ast.unparse(path) for path in paths if is_path(path)}


def is_path(node: ast.AST) -> bool:
    """Return whether something is a name or an attribute of a path."""
    return isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and is_path(node.value))


def first_line(statement: ast.stmt) -> int:
    """Return where a statement begins: at its first decorator."""
    decorators = getattr(statement, "decorator_list", [])
    return int(min([statement.lineno, *(item.lineno for item in decorators)]))


def call_at(source: Source, line: int | None, *, name: str) -> ast.Call | None:
    """Return the call of a method or function of that name which stands on a line.

    The last one of several that are written alike; None if they are not: which one is meant is not known.
    """
    found = [call for call in calls(source.tree, name) if covers(call, line)]
    is_one = len({ast.dump(call) for call in found}) == 1
    return max(found, key=lambda call: (call.lineno, call.col_offset)) if is_one else None


def last_argument(call: ast.Call) -> ast.expr:
    """Return what a call with arguments is given last, as it is written."""
    given = [*call.args, *(item.value for item in call.keywords)]
    return max(given, key=lambda node: (node.lineno, node.col_offset))


def replace_node(source: Source, node: ast.expr, *, text: str) -> list[Edit]:
    """Return a change that puts a text in the place of an expression."""
    before, after = _beside(source, node)
    return [Edit(first=node.lineno, last=node.end_lineno or node.lineno, lines=(before + text + after,))]


def text_of(source: Source, node: ast.expr) -> str:
    """Return an expression as it is written."""
    return ast.get_source_segment(source.text, node) or ast.unparse(node)


def copy_node(source: Source, node: ast.expr) -> list[Edit]:
    """Return changes that put `copy.deepcopy()` around an expression, and import it if nothing does yet."""
    edits = replace_node(source, node, text=f"copy.deepcopy({text_of(source, node)})")
    if "copy" in _imported(source):
        return edits
    imports = (item for item in source.tree.body if isinstance(item, ast.Import | ast.ImportFrom))
    first = next((item for item in imports if getattr(item, "module", None) != "__future__"), None)
    return [*insert_before(source, first, "import copy"), *edits] if first is not None else []


def drop_statement(source: Source, statement: ast.stmt) -> list[Edit]:
    """Return a change that takes a statement away, and leaves `pass` if it was the only one of its block."""
    last = statement.end_lineno or statement.lineno
    is_alone = any([statement] == block for node in walk(source.tree) for block in suites(node))
    start, rest = _beside(source, statement)
    if is_alone:
        lines: tuple[str, ...] = (start + "pass" + rest,)
    elif rest.lstrip().startswith(";") and rest.strip() != ";":  # others stand after it in its line
        lines = (start + rest.lstrip()[1:].lstrip(),)
    else:
        lines = (start.rstrip().removesuffix(";") + rest,) if start.strip() else ()
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
    indent = indent_of(source, first)
    lines = [source.line(number) for number in range(first, last + 1)]
    moved = [("\t" if "\t" in indent else "    ") + line if line.strip() else line for line in lines]
    return [Edit(first=first, last=last, lines=(indent + header, *moved))]


def indent_of(source: Source, line: int) -> str:
    """Return the white space at a line's beginning."""
    text = source.line(line)
    return text[: len(text) - len(text.lstrip())]


def statement_at(source: Source, line: int) -> ast.stmt | None:
    """Return the innermost statement that a line belongs to; the first of several in one line."""
    return innermost(source.tree, line, ast.stmt)


def statements_at(source: Source, line: int | None) -> list[ast.stmt]:
    """Return the statements that a line belongs to, the innermost and last one at the end."""
    found = [node for node in walk(source.tree) if isinstance(node, ast.stmt) and covers(node, line)]
    return sorted(found, key=lambda node: (node.lineno, node.col_offset))


def statement_of(source: Source, node: ast.AST) -> ast.stmt | None:
    """Return the innermost statement that something stands in; None in a lambda, which runs elsewhere."""
    found = [
        item for item in walk(source.tree) if isinstance(item, ast.stmt | ast.Lambda) and node in walk(item)
    ]
    return found[-1] if found and isinstance(found[-1], ast.stmt) else None


def apply(source: Source, edits: Iterable[Edit]) -> str:
    """Return the text with all changes made; those that overlap a later one are left out."""
    lines = io.StringIO(source.raw, newline="").readlines()
    end = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    is_open = bool(lines) and not lines[-1].endswith(("\r", "\n"))
    if is_open:  # what is put in after it must not run on in the same line
        lines[-1] += end
    kept: list[Edit] = []
    for edit in sorted(dict.fromkeys(edits), key=lambda item: (-item.first, -item.last)):
        if any(overlap(edit, other) for other in kept):
            continue
        kept.append(edit)
        lines[edit.first - 1 : edit.last] = [text.replace("\n", end) + end for text in edit.lines]
    text = "".join(lines)
    return text.removesuffix(end) if is_open else text


def overlap(one: Edit, other: Edit) -> bool:
    """Return whether two edits exclude each other: they write the same line, or one writes into the other."""
    are_put_in = one.last < one.first and other.last < other.first
    return one != other and not are_put_in and one.first <= other.last and other.first <= one.last


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
