"""A model is rebuilt as a Sequential of its children, which loses what its forward does between them.

## What it finds
`nn.Sequential(*list(model.children())[:-1])` on a model whose `forward` does more between those layers than
call one after the other: an activation function, a reshape, a residual sum, a layer that is used twice.

## Why it matters
`children()` returns the layers in the order of assignment, not what `forward` does with them. The new model
runs, has the same weights, and computes something else.

## How to fix
Replace the last layer by name (`model.fc = nn.Linear(...)` or `nn.Identity()`), or write a `forward` for the
part that you want. `truestep.model.cut(model, before="fc")` runs the model's own `forward` up to that layer.
"""

import ast
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta, Source
from truestep.rules.analysis.places import name_of
from truestep.rules.analysis.syntax import walk
from truestep.watch.evidence.facts.passes import ForwardPass

RULE = Meta(
    code="PAR14",
    severity="error",
    needs=(ForwardPass,),
    fix="Replace the last layer by name, as in model.fc = nn.Identity(), and keep the model's own forward.",
)


def is_observed(evidence: Evidence) -> bool:
    """Whether a Sequential was made of another model's children."""
    return any(True for source in evidence.sources for _ in _cuts(source))


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find models whose forward has more in it than the Sequential that was made of them."""
    for source in evidence.sources:
        for call, owner, part in _cuts(source):
            model = _class_of(source, owner)
            lost = _lost(model, part) if model is not None else []
            if model is not None and lost:
                yield Finding(
                    message=f"this keeps the layers of {model.name} but loses what forward does between them",
                    file=source.path,
                    line=call.lineno,
                    evidence=f"{model.name}.forward at line {_method(model, 'forward').lineno} also has: "
                    f"{', '.join(lost[:4])}",
                )


def _cuts(source: Source) -> Iterator[tuple[ast.Call, ast.expr, slice]]:
    """Yield the calls of Sequential with some children of a model, the model, and which of them."""
    if ".children()" not in source.text:
        return
    for node in walk(source.tree):
        if isinstance(node, ast.Call) and name_of(node.func) == "Sequential":
            for given in node.args:
                owner = _sliced_children(given.value) if isinstance(given, ast.Starred) else None
                part = _slice_of(given.value) if isinstance(given, ast.Starred) else None
                if owner is not None and part is not None:
                    yield node, owner, part


def _slice_of(node: ast.expr) -> slice | None:
    """Return `[:-1]` with its numbers; None if they are not written there."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Slice):
        return None
    try:
        bounds = [item and ast.literal_eval(item) for item in (node.slice.lower, node.slice.upper)]
    except ValueError:
        return None
    is_plain = node.slice.step is None and all(isinstance(item, int | None) for item in bounds)
    return slice(*bounds) if is_plain else None


def _sliced_children(node: ast.expr) -> ast.expr | None:
    """Return `model` of `list(model.children())[:-1]`."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Slice):
        return None
    made = node.value
    inner = (
        made.args[0] if isinstance(made, ast.Call) and name_of(made.func) == "list" and made.args else made
    )
    if isinstance(made, ast.List) and made.elts and isinstance(made.elts[0], ast.Starred):
        inner = made.elts[0].value
    if isinstance(inner, ast.Call) and name_of(inner.func) == "children":
        return inner.func.value if isinstance(inner.func, ast.Attribute) else None
    return None


def _class_of(source: Source, owner: ast.expr) -> ast.ClassDef | None:
    """Return the class of the script's own that the model was made from, if it can be seen."""
    classes = {node.name: node for node in walk(source.tree) if isinstance(node, ast.ClassDef)}
    text = ast.unparse(owner)
    for node in walk(source.tree):
        if isinstance(node, ast.Assign) and text in {ast.unparse(target) for target in node.targets}:
            made = [item for item in walk(node.value) if isinstance(item, ast.Call)]
            for call in made:
                name = name_of(call.func)
                if name in classes:
                    return classes[name]
    return None


def _method(model: ast.ClassDef, name: str) -> ast.FunctionDef:
    empty = ast.parse(f"def {name}(): pass").body[0]
    found = [node for node in model.body if isinstance(node, ast.FunctionDef) and node.name == name]
    assert isinstance(empty, ast.FunctionDef)
    return found[0] if found else empty


def _lost(model: ast.ClassDef, part: slice) -> list[str]:
    """Return what `forward` does, besides calling layers, before it calls the last one that is kept."""
    nodes = [node for node in walk(_method(model, "forward")) if isinstance(node, ast.Call | ast.BinOp)]
    nodes.sort(key=lambda node: (node.end_lineno or 0, node.end_col_offset or 0))  # as they are computed
    order = [_layer(node) for node in nodes]
    layers = _layers(model, called=set(order))
    kept = layers[part]
    firsts = [order.index(name) for name in kept if name in order]
    if not firsts:
        return []
    # A layer that is kept may be used again behind those that are not: that is no part of the cut.
    behind = (
        index for index, name in enumerate(order) if index > max(firsts) and name in {*layers} - {*kept}
    )
    used = [index for index in range(next(behind, len(order))) if order[index] in kept]
    start = 0 if kept[0] == layers[0] else used[0]
    lost = [ast.unparse(nodes[index]) for index in range(start, used[-1]) if order[index] not in layers]
    called = [order[index] for index in used]
    return lost + [f"self.{name} a second time" for name in dict.fromkeys(called) if called.count(name) > 1]


def _layers(model: ast.ClassDef, *, called: set[str]) -> list[str]:
    """Return the names of a model's children, in their order: what it calls, and what is made of torch's."""
    found = [
        target.attr
        for node in walk(_method(model, "__init__"))
        if isinstance(node, ast.Assign)
        for target, value in _pairs(node)
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
        if _is_made(value) or (target.attr in called and not _is_function(value))
    ]
    return list(dict.fromkeys(found))


def _pairs(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield targets and what each is given, also in `self.a, self.b = c, d`."""
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        else:
            yield target, node.value


def _is_made(value: ast.expr) -> bool:
    text = ast.unparse(value) if isinstance(value, ast.Call) else ""
    return text.startswith(("nn.", "torch.nn.")) and name_of(getattr(value, "func", None)) != "Parameter"


def _is_function(value: ast.expr) -> bool:
    is_torchs = isinstance(value, ast.Attribute) and ast.unparse(value).startswith(("F.", "torch.", "nn."))
    return is_torchs or isinstance(value, ast.Lambda)


def _layer(node: ast.expr) -> str:
    """Return `name` of a call `self.name(...)`."""
    called = node.func if isinstance(node, ast.Call) else None
    is_own = isinstance(called, ast.Attribute) and ast.unparse(called.value) == "self"
    return (name_of(called) or "") if is_own else ""


BUGGY = """
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        x = F.relu(self.first(x))
        x = F.relu(self.second(x))
        return self.head(x)


torch.manual_seed(0)
base = Net()
body = nn.Sequential(*list(base.children())[:-1])  # expect: PAR14
model = nn.Sequential(body, nn.Linear(16, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    F.cross_entropy(model(torch.randn(16, 8)), torch.randint(0, 5, (16,))).backward()
    optimizer.step()
"""

CLEAN = """
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.second = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        x = self.second(self.first(x))
        return self.head(x.flatten(1))


torch.manual_seed(0)
base = Net()
body = nn.Sequential(*list(base.children())[:-1])
model = nn.Sequential(body, nn.Linear(16, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    F.cross_entropy(model(torch.randn(16, 8)), torch.randint(0, 5, (16,))).backward()
    optimizer.step()
"""

FIXED = BUGGY.replace(
    "body = nn.Sequential(*list(base.children())[:-1])  # expect: PAR14\n"
    "model = nn.Sequential(body, nn.Linear(16, 5))",
    "base.head = nn.Linear(16, 5)\nmodel = base",
)
