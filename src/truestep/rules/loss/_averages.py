"""Averages as a source writes them: what a loop adds up, and by what the sum is divided.

Owns reading loops over batches from the syntax. Which batches there were is left to the rule.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from truestep.rules.evidence import Source
from truestep.rules.kit.edits import around
from truestep.rules.kit.syntax import walk
from truestep.rules.kit.where import covers, defined, name_of, nodes, pairs, scope_at
from truestep.rules.loss._meters import own_calls

Loop = ast.For | ast.ListComp | ast.GeneratorExp
_KEEPING = ("item", "detach", "cpu", "float", "numpy", "double", "squeeze")
_AVERAGES = ("mean", "fmean", "average", "nanmean")
_METERED = ("compute", "avg", "average", "global_avg")
_SIZES = ("size", "shape", "len", "numel", "batch_size", "dataset")
_FUNCTIONAL = (
    *("cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits"),
    *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div"),
)
_LAYERS = frozenset(
    (
        *("CrossEntropyLoss", "NLLLoss", "BCELoss", "BCEWithLogitsLoss", "MSELoss", "L1Loss", "SmoothL1Loss"),
        *("HuberLoss", "KLDivLoss", "CTCLoss", "PoissonNLLLoss", "GaussianNLLLoss", "SoftMarginLoss"),
        *("HingeEmbeddingLoss", "CosineEmbeddingLoss", "MarginRankingLoss", "TripletMarginLoss"),
        *("TripletMarginWithDistanceLoss", "MultiMarginLoss", "MultiLabelMarginLoss"),
        "MultiLabelSoftMarginLoss",
    )
)
"""Losses of torch's own; what others return, if their source is not there to be read, may be a sum."""
_MAX_DEPTH = 4


@dataclass(frozen=True, kw_only=True)
class Average:
    """A sum of batch means that is divided."""

    line: int
    """Where a batch's mean is added; where a list of them is averaged, since a list itself is right."""
    divided_at: int
    by: str
    """`batches` or `samples`."""


def find_averages(source: Source, line: int, *, is_inside: bool = False) -> Iterator[Average]:
    """Return the averages that a loop over batches at that line, or around it, makes of batch means."""
    for scope, loop in _loop_around(source, line) if is_inside else _loops(source, line):
        means = _Means(source.tree, loop if isinstance(loop, ast.For) else scope)
        if isinstance(loop, ast.For):
            meters = dict(own_calls(source.tree, loop))
            own = {call.lineno for call in meters if name_of(call.func) == "update"}
            for call, counts_one in meters.items():
                if counts_one and means.is_mean(call.args[0]):
                    yield Average(line=call.lineno, divided_at=call.lineno, by="batches")
            for name, value, added_at in _added(loop):
                if added_at not in own and means.is_mean(value):
                    yield from _divided(scope, loop, name, added_at)
        elif means.is_mean(loop.elt):
            yield from _divided_at_once(scope, loop)


def _loops(source: Source, line: int) -> Iterator[tuple[ast.AST, Loop]]:
    """Return the loops that begin at the line, with the function or module around them."""
    for node in walk(source.tree):
        is_list = isinstance(node, ast.ListComp | ast.GeneratorExp) and len(node.generators) == 1
        if (isinstance(node, ast.For) and covers(node.iter, line)) or (is_list and covers(node, line)):
            yield scope_at(source, node.lineno), node  # type: ignore[attr-defined, misc]


def _loop_around(source: Source, line: int) -> list[tuple[ast.AST, Loop]]:
    """Return the innermost loop whose body holds the line, if the function around both is the same."""
    loop = around(source, line, ast.For)
    scope = None if loop is None else scope_at(source, loop.lineno)
    return [(scope, loop)] if scope is not None and scope is scope_at(source, line) else []


def _added(loop: ast.For) -> Iterator[tuple[str, ast.expr, int | None]]:
    """Return what is added to or appended in the loop: the name, the value, and the line of a sum."""
    for node in walk(loop):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            yield ast.unparse(node.target), node.value, node.lineno
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.value, ast.BinOp):
            name, value = ast.unparse(node.targets[0]), node.value
            if isinstance(value.op, ast.Add) and ast.unparse(value.left) == name:
                yield name, value.right, node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if len(node.args) != 1 or node.keywords or node.func.attr not in ("append", "update"):
                continue
            is_meter = node.func.attr == "update"
            yield ast.unparse(node.func.value), node.args[0], node.lineno if is_meter else None


class _Means:
    """Tells whether an expression is a batch's mean, as far as the source shows it."""

    def __init__(self, tree: ast.Module, near: ast.AST) -> None:
        self._tree = tree
        self._near = near

    def is_mean(self, value: ast.expr, depth: int = 0, near: ast.AST | None = None) -> bool:
        value = _bare(value)
        if depth > _MAX_DEPTH:
            return False
        if isinstance(value, ast.Call):
            return self._is_mean_call(value, depth)
        if isinstance(value, ast.Name):
            given = list(_assigned(near or self._near, value.id))
            return bool(given) and all(self.is_mean(item, depth + 1, near) for item in given)
        return isinstance(value, ast.Attribute) and value.attr == "loss"

    def _is_mean_call(self, call: ast.Call, depth: int) -> bool:
        name = name_of(call.func) or ""
        keywords = {item.arg: item.value for item in call.keywords}
        if name == "mean" and isinstance(call.func, ast.Attribute):
            return not call.args and not keywords
        if name in _FUNCTIONAL:
            return _is_default(keywords)
        layers = [item for item in _assigned(self._tree, name) if isinstance(item, ast.Call)]
        losses = [item for item in layers if (name_of(item.func) or "").endswith("Loss")]
        if losses:
            return all(self._is_mean_layer(loss, depth) for loss in losses)
        functions = defined(self._tree, name, ast.FunctionDef)
        return bool(functions) and self._returns_mean(functions[0], depth)

    def _is_mean_layer(self, made: ast.Call, depth: int) -> bool:
        name = name_of(made.func)
        for node in defined(self._tree, name, ast.ClassDef):
            called = [
                item for name in ("forward", "__call__") for item in defined(node, name, ast.FunctionDef)
            ]
            return any(self._returns_mean(item, depth) for item in called)
        return name in _LAYERS and _is_default({item.arg: item.value for item in made.keywords})

    def _returns_mean(self, function: ast.FunctionDef, depth: int) -> bool:
        returned = [item.value for item in nodes(function, ast.Return)]
        known = [item for item in returned if item is not None]
        return bool(known) and all(self.is_mean(item, depth + 1, function) for item in known)


def _bare(value: ast.expr) -> ast.expr:
    """Return an expression without what only reads it: `.item()`, `float(...)`."""
    while isinstance(value, ast.Call):
        if isinstance(value.func, ast.Attribute) and value.func.attr in _KEEPING and not value.args:
            value = value.func.value
        elif isinstance(value.func, ast.Name) and value.func.id == "float" and len(value.args) == 1:
            value = value.args[0]
        else:
            break
    return value


def _is_default(keywords: dict[str | None, ast.expr]) -> bool:
    how = keywords.get("reduction")
    is_mean = how is None or (isinstance(how, ast.Constant) and how.value in ("mean", "batchmean"))
    return is_mean and "size_average" not in keywords


def _assigned(near: ast.AST, name: str) -> Iterator[ast.expr]:
    """Return what is assigned to a name, or to an attribute or passed as a keyword of that name."""
    for node in walk(near):
        yield from (value for target, value in pairs(node) if name_of(target) == name)


def _divided(scope: ast.AST, loop: ast.For, name: str, added_at: int | None) -> Iterator[Average]:
    for node in walk(scope):
        if getattr(node, "lineno", 0) <= loop.lineno:
            continue
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            left = ast.unparse(_bare(node.left))
            if left in (name, f"sum({name})"):
                is_own = ast.unparse(node.right) == f"len({name})"
                by = "batches" if is_own else _count(loop, node.right, scope)
                if by:
                    yield Average(line=added_at or node.lineno, divided_at=node.lineno, by=by)
        elif isinstance(node, ast.Call) and _is_average(node):
            parts = [*node.args[:1], *([node.func.value] if isinstance(node.func, ast.Attribute) else [])]
            given = [ast.unparse(part) for part in parts]
            if name in given or any(text.endswith((f"tensor({name})", f"array({name})")) for text in given):
                yield Average(line=added_at or node.lineno, divided_at=node.lineno, by="batches")
        if added_at is not None and _is_read_from(node, name):
            yield Average(line=added_at, divided_at=getattr(node, "lineno", added_at), by="batches")


def _is_read_from(node: ast.AST, name: str) -> bool:
    """Whether it is the mean that a meter has kept of what it was given, each with the same weight."""
    return (
        isinstance(node, ast.Attribute) and node.attr in _METERED and ast.unparse(_bare(node.value)) == name
    )


def _divided_at_once(scope: ast.AST, loop: ast.ListComp | ast.GeneratorExp) -> Iterator[Average]:
    text = ast.unparse(loop)
    for node in walk(scope):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and text in ast.unparse(node.left):
            by = _count(loop, node.right, scope)
            if by:
                yield Average(line=loop.lineno, divided_at=node.lineno, by=by)
        elif isinstance(node, ast.Call) and _is_average(node) and text in ast.unparse(node):
            yield Average(line=loop.lineno, divided_at=node.lineno, by="batches")


def _is_average(call: ast.Call) -> bool:
    """Whether it takes a mean in which all count alike."""
    has_weights = len(call.args) > 2 or any(item.arg == "weights" for item in call.keywords)
    return name_of(call.func) in _AVERAGES and not has_weights


def _count(loop: Loop, node: ast.expr, scope: ast.AST) -> str | None:
    """Return what a divisor counts; None if that is not clear."""
    if isinstance(node, ast.Name):
        given = list(_assigned(scope, node.id))
        if len(given) == 1 and isinstance(given[0], ast.Call) and name_of(given[0].func) == "len":
            node = given[0]
    text = ast.unparse(node)
    source = loop.iter if isinstance(loop, ast.For) else loop.generators[0].iter
    over = {ast.unparse(part) for part in walk(source) if isinstance(part, ast.Name | ast.Attribute)}
    inner = next((text.removeprefix(start)[:-1] for start in ("len(",) if text.startswith(start)), None)
    if inner is not None:
        if inner in over:
            return "batches"
        return "samples" if inner.endswith((".dataset", "_dataset", "_set", "dataset")) else None
    added = _added(loop) if isinstance(loop, ast.For) else ()
    counted = [value for name, value, _ in added if name == text]
    if not counted:
        return None
    if all(isinstance(value, ast.Constant) and value.value == 1 for value in counted):
        return "batches"
    is_size = all(any(word in ast.unparse(value) for word in _SIZES) for value in counted)
    return "samples" if is_size else None
