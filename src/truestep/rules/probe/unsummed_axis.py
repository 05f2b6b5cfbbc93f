"""Attention weights are normalized over another axis than the one that is summed.

## What it finds
A softmax over scores of queries and keys that does not run over the keys: `scores.softmax(dim=-2)`, or
`dim=1` of scores with heads. The weights are then multiplied with the values, which sums over the keys.

## Why it matters
The weights of one query do not sum to 1. What a position reads depends on how much the other positions (or
heads) want of it, and a query may get almost nothing. The model still trains, only worse.

## How to fix
Normalize over the keys, the last axis of the scores: `scores.softmax(dim=-1)`.
"""

import ast
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.analysis.flow import OperationGraph
from truestep.rules.analysis.places import Function, assignments, covers, name_of
from truestep.rules.analysis.syntax import walk
from truestep.watch import Operation
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.passes import ForwardPass

RULE = Meta(
    code="PROBE13",
    severity="warning",
    needs=(ForwardPass, OptimizerStep),
    fix="Normalize over the keys, the last axis of the scores: scores.softmax(dim=-1).",
    caused_by=("PROBE01", "PROBE02"),
)
_SCORES = frozenset({"aten.bmm.default", "aten.mm.default", "aten.baddbmm.default"})
_BETWEEN = frozenset(
    {
        "aten.masked_fill.Scalar",
        "aten.masked_fill.Tensor",
        "aten.where.self",
        "aten.div.Tensor",
        "aten.mul.Tensor",
    }
    | {
        "aten.add.Tensor",
        "aten.masked_fill_.Scalar",
        "aten.div.Scalar",
        "aten.mul.Scalar",
        "aten.clone.default",
    }
)
_DROPS = frozenset(
    {"aten.native_dropout.default", "aten.dropout.default", "aten.mul.Tensor", "aten.clone.default"}
)
_MATMULS = frozenset({"matmul", "bmm"})


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find softmaxes over an axis that the next product does not sum."""
    flow = evidence.flow
    found: dict[tuple[str | None, int | None], list[Operation]] = {}
    for item in flow.named("_softmax.default"):
        axis, shape = _axis(item), item.ins[0].shape
        is_self = len(shape) >= 3 and shape[-1] == shape[-2] > 1
        is_wrong = axis is not None and -len(shape) < axis < -1 and item.ins[0].has_grad
        is_in_model = item.phase == "forward"
        if is_self and is_wrong and is_in_model and _is_of_scores(flow, item) and _is_multiplied(flow, item):
            found.setdefault((item.file, item.line), []).append(item)
    for (file, line), items in found.items():
        if _is_plain(evidence, file, line):
            yield _report(items)


def _report(items: list[Operation]) -> Finding:
    first = items[0]
    shape, axis = first.ins[0].shape, _axis(first) or 0
    what = "the queries" if axis == -2 else f"axis {len(shape) + axis}"
    return Finding.at(
        first,
        f"attention weights are normalized over {what}, not over the keys",
        count=len(items),
        evidence=f"softmax over axis {len(shape) + axis} of scores {list(shape)}; the product with the "
        f"values sums over axis {len(shape) - 1}. The {shape[-1]} weights of a query should sum to 1, and "
        "nothing makes them do so",
    )


def _axis(item: Operation) -> int | None:
    """Return the axis of a softmax, counted from the end."""
    words = item.scalars.split(", ")
    try:
        axis = int(words[1])
    except (IndexError, ValueError):
        return None
    return axis - len(item.ins[0].shape) if axis >= 0 else axis


def _is_of_scores(flow: OperationGraph, item: Operation) -> bool:
    """Whether it is given products of two computed tensors: queries and keys."""
    maker = flow.maker(item.ins[0])
    for _ in range(4):
        if maker is None or maker.name in _SCORES:
            break
        large = [given for given in maker.ins if given.has_grad]
        maker = flow.maker(large[0]) if maker.name in _BETWEEN and len(large) == 1 else None
    return maker is not None and maker.name in _SCORES and all(given.has_grad for given in maker.ins[-2:])


def _is_multiplied(flow: OperationGraph, item: Operation) -> bool:
    return any(_takes(user, item) for user in _products(flow, item))


def _products(flow: OperationGraph, item: Operation) -> Iterator[Operation]:
    """Yield the products that are given the weights, at once or after dropout."""
    for user in flow.users(item):
        if user.name in _DROPS:
            yield from (after for after in flow.users(user) if after.name == "aten.bmm.default")
        elif user.name == "aten.bmm.default":
            yield user


def _takes(product: Operation, item: Operation) -> bool:
    """Whether a product has the weights on its left."""
    length = item.ins[0].shape[-1]
    left, right = product.ins[0].shape, product.ins[1].shape
    return left[-2:] == (length, length) and right[-2] == length and right[-1] != length


def _is_plain(evidence: Evidence, file: str | None, line: int | None) -> bool:
    """Whether the text multiplies these very weights from the left: not turned around, not divided again."""
    source = evidence.source(file)
    around = [
        node
        for node in walk(source.tree if source is not None else ast.Module(body=[], type_ignores=[]))
        if isinstance(node, Function) and covers(node, line)
    ]
    if not around:
        return False
    statements = [node for node in walk(around[-1]) if isinstance(node, ast.Assign) and covers(node, line)]
    name = name_of(statements[0].targets[0]) if len(statements) == 1 else None
    if name is None:
        return False
    later = [value for statement, value in assignments(around[-1], name) if statement.lineno > (line or 0)]
    is_kept = all(isinstance(value, ast.Call) and "drop" in ast.unparse(value.func) for value in later)
    lefts = [node.left for node in walk(around[-1]) if isinstance(node, ast.BinOp) and _is_product(node)]
    lefts += [
        node.args[0]
        for node in walk(around[-1])
        if isinstance(node, ast.Call) and name_of(node.func) in _MATMULS and len(node.args) == 2
    ]
    return is_kept and any(_is_name(left, name) for left in lefts)


def _is_product(node: ast.BinOp) -> bool:
    return isinstance(node.op, ast.MatMult)


def _is_name(node: ast.expr, name: str) -> bool:
    """Whether it is the weights, or dropout of them."""
    if isinstance(node, ast.Call) and len(node.args) >= 1 and "drop" in ast.unparse(node.func):
        node = node.args[0]
    return name_of(node) == name


BUGGY = """
import torch
from torch import nn

torch.manual_seed(0)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        scores = self.q(x) @ self.k(x).transpose(1, 2) / 8**0.5
        weights = scores.softmax(dim=1)  # expect: PROBE13
        return self.out((weights @ self.v(x)).mean(1))


model = Attention()
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    x = torch.randn(16, 6, 8)
    loss = (model(x) - x[:, 0]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

CLEAN = """
import torch
from torch import nn

torch.manual_seed(0)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        scores = self.k(x) @ self.q(x).transpose(1, 2) / 8**0.5  # keys first
        weights = scores.softmax(dim=1)
        slots = scores.softmax(dim=1)  # positions compete, and the sum is divided out again
        slots = slots / slots.sum(-1, keepdim=True)
        return self.out((weights.transpose(1, 2) @ self.v(x) + slots @ self.v(x)).mean(1))


model = Attention()
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    x = torch.randn(16, 6, 8)
    loss = (model(x) - x[:, 0]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FIXED = BUGGY.replace("dim=1)  # expect", "dim=-1)  # expect")
