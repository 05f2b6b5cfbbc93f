"""From a line of a script back to the lines that its values come from, by reading the script.

Owns a plain backward slice within one file: what a line uses, who assigns that, and so on. It does not know
the flow of control; it gives candidates, nearest first, which observation then confirms or drops.
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

_MODULE = ""
_SEEDING = {"manual_seed", "manual_seed_all", "seed", "default_rng", "Random", "RandomState", "SeedSequence"}
_SEEDING |= {"seed_everything", "set_seed", "Generator"}
_SETS = {"set", "frozenset"}
_SAVING = {"save", "dump"}
_Node = TypeVar("_Node", ast.Call, ast.Assign)

Function = ast.FunctionDef | ast.AsyncFunctionDef
_Scope = Function | ast.ClassDef


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One simple statement, or the head of a compound one."""

    line: int
    end_line: int
    scope: str
    """The function that it is in, as `Class.method`; empty for the module's own level."""
    assigns: frozenset[str] = field(repr=False)
    """Names, and attributes with a dot before them, that it gives a value or may change."""
    uses: frozenset[str] = field(repr=False)
    calls: frozenset[str] = field(repr=False)
    """Last names of what it calls; what has none, as in `layers[0](x)`, is left out."""
    makes_set: bool = False

    @property
    def seeds(self) -> bool:
        """Whether something is called that takes a seed."""
        return bool(self.calls & _SEEDING)


def slice_from(path: str, line: int) -> Iterator[Statement]:
    """Yield the statement at a line, then those that what it uses may come from, nearest first."""
    script = _read(path)
    waiting = script.at_line(line) if script is not None else []
    if script is None or not waiting:
        return
    seen = set(map(id, waiting))
    while waiting:
        for statement in waiting:
            yield statement
        found = [item for statement in waiting for item in script.before(statement)]
        waiting = []
        for statement in found:
            if id(statement) not in seen:
                seen.add(id(statement))
                waiting.append(statement)


def statement_at(path: str, line: int) -> Statement | None:
    """Return the statement that a line belongs to."""
    script = _read(path)
    return script.at(line) if script is not None else None


def assigning(path: str | None, names: Sequence[str]) -> int | None:
    """Return the last line that gives a value to a variable or its attribute, the innermost name first."""
    script = _read(path) if path is not None else None
    for name in reversed(names):
        wanted = {name, f".{name}"}
        lines = [item.line for item in script.statements if wanted & item.assigns] if script else []
        if lines:
            return max(lines)
    return None


def saved_name(path: str | None, line: int | None) -> str | None:
    """Return the variable that a line saves: `state` in `torch.save(state, path)`."""
    for call in _nodes_at(path, line, ast.Call):
        if _last_name(call.func) in _SAVING and call.args and isinstance(call.args[0], ast.Name):
            return call.args[0].id
    return None


def loaded_name(path: str | None, line: int | None) -> str | None:
    """Return the variable that a line loads: `state` in `state = torch.load(path)`."""
    for node in _nodes_at(path, line, ast.Assign):
        is_loading = isinstance(node.value, ast.Call) and _last_name(node.value.func) == "load"
        if is_loading and isinstance(node.targets[0], ast.Name):
            return node.targets[0].id
    return None


def _nodes_at(path: str | None, line: int | None, kind: type[_Node]) -> Iterator[_Node]:
    script = _read(path) if path is not None and line is not None else None
    for node in ast.walk(script.tree) if script is not None else ():
        if isinstance(node, kind) and node.lineno <= (line or 0) <= (node.end_lineno or node.lineno):
            yield node


class _File:
    """All statements of a file, with who assigns what."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.statements: list[Statement] = []
        self._parameters: dict[str, set[str]] = {_MODULE: set()}
        self._functions: set[str] = set()
        """Names of functions: one that is handed on is called by whoever gets it."""
        self._add_body(tree.body, _MODULE)

    def at(self, line: int) -> Statement | None:
        """Return the shortest statement that covers a line."""
        covering = [item for item in self.statements if item.line <= line <= item.end_line]
        return min(covering, key=lambda item: item.end_line - item.line, default=None)

    def at_line(self, line: int) -> list[Statement]:
        """Return the shortest statement of a line, and others of the same lines, as after a semicolon."""
        found = self.at(line)
        lines = (found.line, found.end_line) if found is not None else None
        return [item for item in self.statements if (item.line, item.end_line) == lines]

    def before(self, statement: Statement) -> list[Statement]:
        """Return the statements that give values to what this one uses; in loops also those below it."""
        found = []
        for name in statement.uses:
            found += self._assigning(name, statement.scope)
        for name in {*statement.calls, *(statement.uses & self._functions)}:
            found += self._inside(name)
        return sorted(found, key=lambda item: (item.line > statement.line, abs(statement.line - item.line)))

    def _assigning(self, name: str, scope: str) -> list[Statement]:
        if name.startswith("."):
            return [item for item in self.statements if name in item.assigns]
        own = [item for item in self.statements if name in item.assigns and item.scope == scope]
        if name in self._parameters[scope]:
            callee = scope.rpartition(".")[2]
            owner = scope.rpartition(".")[0] if callee == "__init__" else callee
            own += [item for item in self.statements if owner in item.calls]
        if own or scope == _MODULE:
            return own
        outer = scope.rpartition(".")[0]
        return self._assigning(name, outer)

    def _inside(self, name: str) -> list[Statement]:
        return [item for item in self.statements if name in item.scope.split(".")]

    def _add_body(self, body: list[ast.stmt], scope: str) -> None:
        for node in body:
            if isinstance(node, _Scope):
                inner = f"{scope}.{node.name}" if scope else node.name
                self._parameters[inner] = _parameters_of(node)
                if isinstance(node, Function):
                    self._functions.add(node.name)
                self._add_body(node.body, inner)
            else:
                self.statements.append(_describe(node, scope))
                for name in ("body", "orelse", "finalbody"):
                    self._add_body(getattr(node, name, []), scope)
                for handler in getattr(node, "handlers", []):
                    self._add_body(handler.body, scope)


def _parameters_of(node: _Scope) -> set[str]:
    if isinstance(node, ast.ClassDef):
        return set()
    given = node.args
    return {item.arg for item in (*given.posonlyargs, *given.args, *given.kwonlyargs)}


def _describe(node: ast.stmt, scope: str) -> Statement:
    """Describe a statement by its head: what is in its body are statements of their own."""
    inner = {"body", "orelse", "finalbody", "handlers"}
    heads = [value for name, value in ast.iter_fields(node) if name not in inner]
    parts = [item for value in heads for item in (value if isinstance(value, list) else [value])]
    nodes = [item for part in parts if isinstance(part, ast.AST) for item in ast.walk(part)]
    calls = [item for item in nodes if isinstance(item, ast.Call)]
    has_body = bool(getattr(node, "body", None))
    last = max((getattr(item, "end_lineno", None) or 0 for item in nodes), default=node.lineno)
    changed = {name for call in calls for name in _changed_by(call)} if isinstance(node, ast.Expr) else set()
    stored = {name for item in nodes if _is_stored(item) for name in _names(item)}
    if isinstance(node, ast.AugAssign):
        stored |= set(_names(node.target))
    return Statement(
        line=node.lineno,
        end_line=max(last, node.lineno) if has_body else node.end_lineno or node.lineno,
        scope=scope,
        assigns=frozenset(stored | changed),
        uses=frozenset(name for item in nodes for name in _names(item)),
        calls=frozenset(filter(None, (_last_name(call.func) for call in calls))),
        makes_set=any(isinstance(item, ast.Set | ast.SetComp) for item in nodes)
        or any(_last_name(call.func) in _SETS for call in calls),
    )


def _is_stored(node: ast.AST) -> bool:
    return isinstance(getattr(node, "ctx", None), ast.Store) or isinstance(node, ast.Subscript)


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield f".{node.attr}"
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        yield from _names(node.value)


def _changed_by(call: ast.Call) -> Iterator[str]:
    """Yield what a call that stands alone may change: its arguments, and the object whose method it is."""
    for argument in call.args:
        yield from _names(argument)
    if isinstance(call.func, ast.Attribute):
        yield from _names(call.func.value)


def _last_name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def loader_words(file: str, line: int) -> dict[str, str]:
    """Return what a file calls its seed, and what belongs to the loader that a line goes through.

    By the names `SEED`, `BATCH`, `dataset` and `loader`; what has no plain name there is left out.
    """
    try:
        nodes = [*ast.walk(ast.parse(Path(file).read_text(encoding="utf-8")))]
    except (OSError, SyntaxError, ValueError):
        return {}
    made = {id(node.value): node.targets[0] for node in nodes if isinstance(node, ast.Assign)}
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    loaders = [
        {
            "loader": made.get(id(call)),
            "dataset": _argument(call, 0, "dataset"),
            "BATCH": _argument(call, 1, "batch_size"),
        }
        for call in calls
        if _last_name(call.func).endswith("DataLoader")
    ]
    used = statement_at(file, line)
    own = [item for item in loaders if used is not None and _plain(item["loader"]) in used.uses] or loaders
    seeds = [_argument(call, 0, "seed") for call in calls if _last_name(call.func) in _SEEDING]
    found = {"SEED": next(filter(_plain, seeds), None), **(own[0] if len(own) == 1 else {})}
    return {name: text for name, node in found.items() if (text := _plain(node))}


def _argument(call: ast.Call, place: int, name: str) -> ast.expr | None:  # limits: where it may stand
    given = {item.arg: item.value for item in call.keywords}
    return given.get(name) or (call.args[place] if place < len(call.args) else None)


def _plain(node: ast.expr | None) -> str:
    """Return a name, an attribute or a number as it is written; empty for anything else."""
    is_number = isinstance(node, ast.Constant) and isinstance(node.value, int)
    return (
        ast.unparse(node)
        if node is not None and (is_number or isinstance(node, ast.Name | ast.Attribute))
        else ""
    )


@lru_cache(maxsize=32)
def _read(path: str) -> _File | None:
    try:
        return _File(ast.parse(Path(path).read_text(encoding="utf-8")))
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
        return None
