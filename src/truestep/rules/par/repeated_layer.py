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
from truestep.rules.kit.where import assignments, class_in, covers, name_of, nodes
from truestep.watch.evidence.facts.passes import ForwardPass, ModelUsed
from truestep.watch.evidence.facts.structure import LayerRepeated, ParametersListed
from truestep.watch.evidence.kinds import Place

RULE = Meta(
    code="PAR02",
    severity="error",
    needs=(ModelUsed, ForwardPass, ParametersListed),
    fix="Create each layer separately: [Layer() for _ in range(n)] instead of [Layer()] * n.",
)
_ON_PURPOSE = ("shared", "tied", "share", "tie")


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find containers that hold one layer several times."""
    for moment in evidence.of(LayerRepeated):
        facts = moment.facts
        place = _find_place(evidence, facts)
        if place is None:
            continue
        yield Finding.at(
            place,
            f"{facts.holder} contains the same {facts.class_name} {facts.num_copies} times: "
            "they share one set of weights",
            step=moment.step + 1,
            evidence=f"{facts.num_copies} entries of {facts.path or facts.holder} are the same object",
        )


def _find_place(evidence: Evidence, facts: LayerRepeated) -> Place | None:
    own = evidence.source(facts.file)
    sources = [own] if own is not None else []
    for source in [*sources, *(source for source in evidence.sources if source is not own)]:
        trees = [class_in(source, facts.holder)] if source is own else []
        for tree in [*trees, source.tree]:
            lines = [node.lineno for node in _multiplied(tree)]
            if not lines and not facts.num_others_trained:  # else it may be meant to come again
                lines = [node.lineno for node in _comprehended(tree)]
            if lines:
                return source.at(lines[0])
    return None


def _multiplied(tree: ast.AST) -> Iterator[ast.BinOp]:
    """Yield `[Layer()] * n`, also where the list or the layer has a name."""
    for node in nodes(tree, ast.BinOp):
        if isinstance(node.op, ast.Mult) and any(_is_layers(side, tree) for side in (node.left, node.right)):
            yield node


def _is_layers(node: ast.expr, tree: ast.AST) -> bool:
    values = [node]
    if isinstance(node, ast.Name):
        values = [value for _, value in assignments(tree, node.id)]
    lists = [value for value in values if isinstance(value, ast.List | ast.Tuple)]
    return any(_is_layer(item, tree) for value in lists for item in value.elts)


def _is_layer(node: ast.expr, tree: ast.AST) -> bool:
    name = name_of(node.func) if isinstance(node, ast.Call) else name_of(node)
    if name is None or any(word in name.lower() for word in _ON_PURPOSE):
        return False
    return isinstance(node, ast.Call) or _is_made_once(node, tree)


def _is_made_once(node: ast.expr, tree: ast.AST) -> bool:
    return any(isinstance(value, ast.Call) for _, value in assignments(tree, name_of(node) or ""))


def _comprehended(tree: ast.AST) -> Iterator[ast.ListComp | ast.GeneratorExp]:
    """Yield `[layer for _ in range(n)]`, in which the layer was made before."""
    for node in walk(tree):
        if isinstance(node, ast.ListComp | ast.GeneratorExp) and isinstance(node.elt, ast.Name):
            is_other = node.elt.id != name_of(node.generators[0].target)
            if is_other and _is_layer(node.elt, tree):
                yield node


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
