"""A list contains one layer several times instead of several layers.

## What it finds
A `ModuleList`, `Sequential` or `ModuleDict` that contains the same module with parameters several times, as
`[Layer()] * n` creates it.

## Why it matters
Multiplying a list repeats the reference, not the object. A stack of six layers has the weights of one: a
sixth of the capacity, and the gradients of all six positions summed into one weight. It trains, only worse.

## How to fix
Create each layer separately: `nn.ModuleList([Layer() for _ in range(n)])`, or copy it with `copy.deepcopy`.
If you want to apply one layer several times, store it once and call it in a loop.
"""

import ast
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta, Source
from truestep.rules.kit.edits import Edit, replace_node, text_of
from truestep.rules.kit.syntax import walk
from truestep.rules.kit.where import (
    Function,
    assignments,
    calls,
    class_in,
    covers,
    name_of,
    own_nodes,
)
from truestep.watch.evidence.facts.passes import ForwardPass, ModelUsed
from truestep.watch.evidence.facts.structure import LayerRepeated, ParametersListed

RULE = Meta(
    code="PAR02",
    severity="error",
    needs=(ModelUsed, ForwardPass, ParametersListed),
    fix="Create each layer separately: [Layer() for _ in range(n)] instead of [Layer()] * n.",
)
_MAKERS = ("ModuleList", "Sequential", "ModuleDict")
_ON_PURPOSE = ("shared", "tied", "share", "tie")


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find containers that hold one layer several times."""
    for moment in evidence.of(LayerRepeated):
        facts = moment.facts
        place = _find_place(evidence, facts)
        if place is None:
            continue
        file, line = place
        yield Finding(
            message=f"{facts.holder} contains the same {facts.class_name} {facts.num_copies} times: "
            "they share one set of weights",
            file=file,
            line=line,
            step=moment.step + 1,
            evidence=f"{facts.num_copies} entries of {facts.path or facts.holder} are the same object",
        )


def _find_place(evidence: Evidence, facts: LayerRepeated) -> tuple[str, int] | None:
    own = evidence.source(facts.file)
    sources = [own] if own is not None else []
    sources += [source for source in evidence.sources if source not in sources]
    for source in sources:
        trees = [class_in(source, facts.holder)] if source is own else []
        lines = (_multiplied(tree, facts.attribute) for tree in [*trees, source.tree])
        line = next(filter(None, lines), None)
        if line is not None:
            return source.path, line
    if facts.num_others_trained:  # a layer that comes again among others may be meant
        return None
    for source in sources:
        line = _extended(source) if facts.num_others else _added(source, facts.attribute)
        if line is not None:
            return source.path, line
    return None


def _multiplied(tree: ast.AST, attribute: str) -> int | None:
    """Return the line of `[layer] * n` in what is assigned to the attribute, or in what goes into it."""
    parts = [value for _, value in assignments(tree, attribute)]
    parts += [call for name in _MAKERS for call in calls(tree, name)]
    through = {node.id for part in parts for node in walk(part) if isinstance(node, ast.Name)}
    parts += [value for name in sorted(through) for _, value in assignments(tree, name)]
    for part in parts:
        for node in walk(part):
            sides = (node.left, node.right) if isinstance(node, ast.BinOp) else ()
            if any(_is_layers(side, tree) for side in sides) and isinstance(
                getattr(node, "op", None), ast.Mult
            ):
                return getattr(node, "lineno", None)
    return None


def _is_layers(node: ast.expr, tree: ast.AST) -> bool:
    """Whether it is a list of layers, or a name for one."""
    if isinstance(node, ast.List | ast.Tuple):
        return any(map(_is_layer, node.elts))
    values = [value for _, value in assignments(tree, node.id)] if isinstance(node, ast.Name) else []
    return any(
        isinstance(value, ast.List | ast.Tuple)
        and any(isinstance(item, ast.Call) and _is_layer(item) for item in value.elts)
        for value in values
    )


def _is_layer(node: ast.expr) -> bool:
    name = name_of(node.func) if isinstance(node, ast.Call) else name_of(node)
    return name is not None and not any(word in name.lower() for word in _ON_PURPOSE)


def _added(source: Source, attribute: str) -> int | None:
    """Return the line at which a layer that exists already is put into a container again and again."""
    for node in walk(source.tree):
        if isinstance(node, ast.ListComp | ast.GeneratorExp) and isinstance(node.elt, ast.Name):
            target = node.generators[0].target
            if (
                _is_layer(node.elt)
                and node.elt.id != name_of(target)
                and _leads_to(source.tree, attribute, node)
            ):
                return node.lineno
    for loop in walk(source.tree):
        if not isinstance(loop, ast.For):
            continue
        made = {name_of(item) for node in walk(loop) if isinstance(node, ast.Assign) for item in node.targets}
        for call in [*calls(loop, "append"), *calls(loop, "add_module")]:
            given = call.args[-1] if call.args else None
            if (
                isinstance(given, ast.Name)
                and given.id not in made | {name_of(loop.target)}
                and _is_layer(given)
            ):
                return call.lineno
    return None


def _extended(source: Source) -> int | None:
    """Return the line of a loop that adds a list with a layer that was made before the loop."""
    for loop in walk(source.tree):
        if not isinstance(loop, ast.For):
            continue
        inside = {id(value) for node in walk(loop) for value in ast.iter_child_nodes(node)}
        for node in walk(loop):
            given = node.value if isinstance(node, ast.AugAssign) else None
            if isinstance(node, ast.Call) and name_of(node.func) == "extend" and node.args:
                given = node.args[0]
            for item in given.elts if isinstance(given, ast.List | ast.Tuple) else ():
                values = [value for _, value in assignments(source.tree, name_of(item) or "")]
                is_made = [isinstance(value, ast.Call) and id(value) not in inside for value in values]
                if is_made and all(is_made) and _is_layer(item):
                    return item.lineno
    return None


def _leads_to(tree: ast.AST, attribute: str, node: ast.AST) -> bool:
    values = [value for _, value in assignments(tree, attribute)]
    if any(node in walk(value) for value in values):
        return True
    makers = {
        function.name
        for function in walk(tree)
        if isinstance(function, Function)
        and any(node in walk(item) for item in own_nodes(function) if isinstance(item, ast.Return))
    }
    return any(next(iter(calls(value, name)), None) is not None for value in values for name in makers)


def make_edits(source: Source, finding: Finding) -> list[Edit]:
    """Make a layer for each place: for `[Layer()] * n`, and for `[layer for _ in ...]` of one layer."""
    for node in walk(source.tree):
        if not isinstance(node, ast.expr) or not covers(node, finding.line):
            continue
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and isinstance(node.left, ast.List):
            made = node.left.elts[0] if len(node.left.elts) == 1 else None
            if isinstance(made, ast.Call):
                text = f"[{text_of(source, made)} for _ in range({text_of(source, node.right)})]"
                return replace_node(source, node, text=text)
        if isinstance(node, ast.ListComp | ast.GeneratorExp) and isinstance(node.elt, ast.Name):
            values = [value for _, value in assignments(source.tree, node.elt.id)]
            if len(values) == 1 and isinstance(values[0], ast.Call):
                return replace_node(source, node.elt, text=text_of(source, values[0]))
    return []
