"""Long forms of scripts: the same lines, with larger numbers where they say how often they step.

Owns finding those numbers. Lines stay where they are, so that a mark on one holds for both forms.
"""

import ast
from collections.abc import Iterator, Set

_STEPS = {"step", "backward", "manual_backward", "grad"}
_TRAINERS = {"max_epochs", "max_steps", "num_train_epochs"}
"""What a framework's trainer calls the numbers."""


def lengthened(text: str, *, times: int) -> str | None:
    """Return a script that makes so many times as many steps, if its text says how many it makes."""
    tree = ast.parse(text)
    new: dict[tuple[int, int, int], str] = {}
    lines = [line.encode() for line in text.splitlines(keepends=True)]
    for bound in _bounds(tree):
        numbers = list(_numbers(tree, bound, seen=set()))
        for node in numbers or [bound]:
            place = (node.lineno, node.col_offset, node.end_col_offset or 0)
            whole = lines[place[0] - 1][place[1] : place[2]].decode()
            new[place] = str(node.value * times) if isinstance(node, ast.Constant) else f"({whole}) * {times}"
    for (line, start, end), words in sorted(new.items(), reverse=True):
        lines[line - 1] = lines[line - 1][:start] + words.encode() + lines[line - 1][end:]
    return b"".join(lines).decode() if new else None


def _bounds(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield what says how often the outermost loops around a step turn."""
    stepping = _stepping(tree)
    loops = {
        node: bound
        for node in ast.walk(tree)
        if isinstance(node, ast.For | ast.While) and (bound := _bound(node, tree)) and _steps(node, stepping)
    }
    inside = {
        node
        for loop in loops
        for outer in [loop, *_reached(tree, loop)]
        for node in ast.walk(outer)
        if node is not loop
    }
    yield from (bound for loop, bound in loops.items() if loop not in inside)
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg in _TRAINERS:
            yield node.value


def _bound(loop: ast.For | ast.While, tree: ast.Module) -> ast.expr | None:
    if isinstance(loop, ast.While):
        return loop.test.comparators[0] if isinstance(loop.test, ast.Compare) else None
    made_by = [item for item in _functions(tree) if item.name in _called(loop.iter)]
    turns = [
        node for item in made_by for node in ast.walk(item) if isinstance(node, ast.For) and _yields(node)
    ]
    for given in [loop.iter, *(item.iter for item in turns)]:
        for node in ast.walk(given):
            if isinstance(node, ast.Call) and _name(node.func) == "range":
                return node.args[min(len(node.args) - 1, 1)]
    return None


def _yields(node: ast.AST) -> bool:
    return any(isinstance(item, ast.Yield | ast.YieldFrom) for item in ast.walk(node))


def _functions(tree: ast.AST) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def _called(node: ast.AST) -> set[str]:
    return {_name(item.func) for item in ast.walk(node) if isinstance(item, ast.Call)}


def _stepping(tree: ast.Module) -> set[str]:
    """Return the names whose call makes a step, perhaps through others."""
    found, size = set(_STEPS), 0
    while len(found) > size:
        size = len(found)
        found |= {item.name for item in _functions(tree) if _steps(item, found)}
    return found


def _steps(node: ast.AST, stepping: Set[str]) -> bool:
    return not stepping.isdisjoint(_called(node))


def _reached(tree: ast.Module, loop: ast.AST) -> list[ast.FunctionDef]:
    """Return the functions that a loop calls, perhaps through others; not the one that it is in."""
    names, size = _called(loop), 0
    others = [item for item in _functions(tree) if loop not in ast.walk(item)]
    while len(names) > size:
        size = len(names)
        names |= {name for item in others if item.name in names for name in _called(item)}
    return [item for item in others if item.name in names]


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _numbers(tree: ast.Module, value: ast.expr, *, seen: set[str]) -> Iterator[ast.Constant]:
    """Yield the numbers in the text that a value comes from: where names are bound, given or parsed."""
    if isinstance(value, ast.Constant) and type(value.value) is int:
        yield value
    for name in {
        _name(node) for node in ast.walk(value) if isinstance(node, ast.Name | ast.Attribute)
    } - seen:
        seen.add(name)
        for node in ast.walk(tree):
            for bound in _given(node, name, tree):
                yield from _numbers(tree, bound, seen=seen)


def _given(node: ast.AST, name: str, tree: ast.Module) -> Iterator[ast.expr]:
    """Yield what a node gives to a name."""
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=True))
            yield from (value for part, value in pairs if _name(part) == name)
    elif isinstance(node, ast.keyword) and node.arg == name:
        yield node.value
    elif isinstance(node, ast.arguments):
        places = [*node.posonlyargs, *node.args][::-1], [*node.kwonlyargs][::-1]
        for arguments, values in zip(places, (node.defaults, node.kw_defaults), strict=True):
            pairs = zip(arguments, values[::-1], strict=False)
            yield from (value for argument, value in pairs if argument.arg == name and value)
    elif isinstance(node, ast.Call):
        yield from _passed(node, name, tree)


def _passed(call: ast.Call, name: str, tree: ast.Module) -> Iterator[ast.expr]:
    """Yield what a call passes to a name by its place, or a parser gives to its option."""
    option = call.args[0] if call.args and _name(call.func) == "add_argument" else None
    if isinstance(option, ast.Constant) and str(option.value).lstrip("-").replace("-", "_") == name:
        yield from (item.value for item in call.keywords if item.arg == "default")
    for function in _functions(tree):
        names = [item.arg for item in function.args.args if item.arg != "self"]
        if function.name == _name(call.func) and name in names[: len(call.args)]:
            yield call.args[names.index(name)]
