"""The syntax tree of a script, for rules: its nodes, gathered once.

Owns walking a tree. What nodes mean is in `where`, `order` and `flow`.
"""

import ast
from collections.abc import Sequence


def walk(node: ast.AST) -> Sequence[ast.AST]:
    """Return a node and all below it, as `ast.walk` does.

    The list is kept at the node: some fifty rules walk the same trees, and none changes them.
    """
    found: list[ast.AST] | None = getattr(node, "_walked", None)
    if found is None:
        found = node._walked = list(ast.walk(node))  # type: ignore[attr-defined]
    return found
