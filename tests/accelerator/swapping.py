"""Scripts for the CPU, put on the test accelerator line by line: what is said of a line stays true."""

import ast
from collections.abc import Iterable

_DATA = ("load", "batches", "stream")
_THERE = '.pin_memory().to("toy", non_blocking=True)'
_MOVED = "{0} = [i_THERE for i in {0}] if isinstance({0}, (list, tuple)) else {0}_THERE; ".replace(
    "_THERE", _THERE
)
BACKEND = "cpu:gloo,toy:host"
"""What a script for a GPU would have instead of gloo."""
_COMPOUND = (ast.For, ast.If, ast.With, ast.While, ast.Try)


def swap(source: str) -> str | None:
    """Return a script whose models and batches are on the device, or None if neither is found.

    Models are moved where they are made, batches in the first line of a loop over a loader.
    """
    tree = ast.parse(source)
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    inside = {id(node) for one in classes for node in ast.walk(one)}
    modules = {one.name for one in classes if any("Module" in ast.unparse(base) for base in one.bases)}
    outside = [node for node in ast.walk(tree) if id(node) not in inside]
    made = [edit for node in outside for edit in _model_edits(node, modules)]
    moved = [edit for node in outside for edit in _batch_edits(node)]
    if not made or not moved:
        return None
    return _edited(source, {*made, *moved})


def _edited(source: str, edits: Iterable[tuple[int, int, str]]) -> str:
    lines = source.splitlines(keepends=True)
    for line, column, text in sorted(edits, reverse=True):
        before = lines[line - 1].encode()
        lines[line - 1] = (before[:column] + text.encode() + before[column:]).decode()
    return "".join(lines).replace('"gloo"', f'"{BACKEND}"')


def _model_edits(node: ast.AST, modules: set[str]) -> list[tuple[int, int, str]]:
    if not isinstance(node, ast.Assign | ast.Return) or not isinstance(node.value, ast.Call):
        return []
    name = ast.unparse(node.value.func)
    is_layer = name.startswith("nn.") and name[3:4].isupper() and not name.endswith(("Loss", "Parameter"))
    if name not in modules and not is_layer:
        return []
    return [(node.value.end_lineno or 0, node.value.end_col_offset or 0, '.to("toy")')]


def _batch_edits(node: ast.AST) -> list[tuple[int, int, str]]:
    if not isinstance(node, ast.For) or isinstance(node.body[0], _COMPOUND):
        return []
    loop = ast.unparse(node.iter)
    if not any(word in loop.lower() for word in _DATA):
        return []
    target = node.target
    if loop.startswith("enumerate") and isinstance(target, ast.Tuple):
        target = target.elts[1]
    found = target.elts if isinstance(target, ast.Tuple) else [target]
    names = [item.id for item in found if isinstance(item, ast.Name) and item.id != "_"]
    return [(node.body[0].lineno, node.body[0].col_offset, "".join(map(_MOVED.format, names)))]


def make_there(source: str) -> str | None:
    """Return a script that makes its tensors on the device, or None if it imports torch in another way.

    Loaders get a generator of the device, which torch asks for if tensors are made there by default.
    """
    tree = ast.parse(source)
    imports = [node for node in tree.body if isinstance(node, ast.Import) and _names(node) == ["torch"]]
    if not imports:
        return None
    default = '; torch.set_default_device("toy")'
    edits = [(imports[0].end_lineno or 0, imports[0].end_col_offset or 0, default)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            edits += _call_edits(node)
    return _edited(source, edits)


def _names(node: ast.Import) -> list[str]:
    return [alias.asname or alias.name for alias in node.names]


def _call_edits(node: ast.Call) -> list[tuple[int, int, str]]:
    line, column = node.end_lineno or 0, node.end_col_offset or 0
    name = ast.unparse(node.func)
    if name == "torch.from_numpy":
        return [(line, column, '.to("toy")')]
    if name == "torch.Generator" and not node.args and not node.keywords:
        return [(line, column - 1, '"toy"')]
    is_loader = name.endswith("DataLoader") and node.args
    if is_loader and not any(item.arg == "generator" for item in node.keywords):
        after = [*node.args, *(item.value for item in node.keywords)][-1]
        given = ', generator=torch.Generator("toy").manual_seed(0)'
        return [(after.end_lineno or 0, after.end_col_offset or 0, given)]
    return []
