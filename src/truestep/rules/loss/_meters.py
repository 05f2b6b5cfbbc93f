"""Meters that a script defines itself: classes that add up what they are given and divide it by a count.

Owns reading from the syntax whether one call counts as one, however large the batch was.
"""

import ast
from collections.abc import Iterator

from truestep.rules.kit.syntax import walk
from truestep.rules.kit.where import assignments, bind, identifiers, name_of, nodes


def own_calls(tree: ast.Module, loop: ast.AST) -> Iterator[tuple[ast.Call, bool]]:
    """Return calls in a loop of methods that the script defines, and whether each gives a mean weight one."""
    classes = nodes(tree, ast.ClassDef)
    for call in nodes(loop, ast.Call):
        if not isinstance(call.func, ast.Attribute) or not call.args:
            continue
        owners = [item for item in classes if _method(item, call.func.attr) is not None]
        made = _classes_of(tree, call.func.value)
        named = [item for item in owners if item.name in made]
        if owners and (named or not made):
            yield call, all(_counts_one(item, call) for item in named or owners)


def _method(owner: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    return next(
        (item for item in owner.body if isinstance(item, ast.FunctionDef) and item.name == name), None
    )


def _classes_of(tree: ast.Module, receiver: ast.expr) -> set[str]:
    """Return the names of what makes an object, as far as the source shows it."""
    made = [value for _, value in assignments(tree, name_of(receiver) or "")]
    return {name_of(value.func) or "" for value in made if isinstance(value, ast.Call)}


def _counts_one(owner: ast.ClassDef, call: ast.Call) -> bool:
    """Whether the method adds the value as it is and one to a count, by which the class divides the sum."""
    method = _method(owner, call.func.attr if isinstance(call.func, ast.Attribute) else "")
    given = _given(method, call) if method is not None else {}
    if method is None or not given:
        return False
    value, *others = given
    weighted = {name for name in others if not _is_one(given[name])}
    sums, counts = set(), set()
    for node in walk(method):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            names = identifiers(node.value)
            if value in names and not names & weighted:
                sums.add(ast.unparse(node.target))
            elif _is_one(given.get(ast.unparse(node.value), node.value)):
                counts.add(ast.unparse(node.target))
        elif isinstance(node, ast.Expr) and ast.unparse(node).endswith(f".append({value})"):
            kept = ast.unparse(node).removesuffix(f".append({value})")
            sums.add(f"sum({kept})")
            counts.add(f"len({kept})")
    return any(_divides(node, sums, counts) for node in walk(owner))


def _divides(node: ast.AST, sums: set[str], counts: set[str]) -> bool:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
        return False
    below = {ast.unparse(item) for item in walk(node.right) if isinstance(item, ast.expr)}
    return ast.unparse(node.left) in sums and bool(below & counts)


def _given(method: ast.FunctionDef, call: ast.Call) -> dict[str, ast.expr | None]:
    """Return what each parameter but the first is given, in their order."""
    names = [item.arg for item in method.args.args[1:]]
    defaults = dict(zip(reversed(names), reversed(method.args.defaults), strict=False))
    return {name: bind(method, call).get(name, defaults.get(name)) for name in names}


def _is_one(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value == 1
