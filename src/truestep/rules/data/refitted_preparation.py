"""Evaluation inputs are standardized with their own mean and deviation, not with those of training.

## What it finds
Training inputs whose columns or channels have a mean of exactly 0 and a standard deviation of exactly 1 over
the whole training set, and evaluation inputs of the same model with exactly these over their own set. The
rule reads the dataset, or the tensor that batches are cut from. Samples, or parts of a set, that are
standardized each for itself are not reported.

## Why it matters
The same raw value becomes another number in training and in evaluation. The score does not show a
shift between the sets, depends on which samples are evaluated together, and cannot be reached for a single
new sample.

## How to fix
Compute mean and deviation from the training data once, and use these for every other set. With scikit-learn,
call `fit_transform()` for the training data only, and `transform()` for all others.
"""

import ast
from collections.abc import Iterator
from typing import Any

from truestep.rules import Evidence, Finding, Meta, Source
from truestep.rules.analysis.loaders import words_say
from truestep.rules.analysis.places import Function, calls, name_of
from truestep.rules.analysis.syntax import walk
from truestep.watch import Moment
from truestep.watch.evidence.facts.loading import SetStandardized
from truestep.watch.evidence.facts.optimizing import OptimizerStep

RULE = Meta(
    code="DATA22",
    severity="warning",
    needs=(SetStandardized, OptimizerStep),
    fix="Standardize evaluation data with the mean and the standard deviation of the training data.",
)
_LEAST_ROWS, _MAX_CALLS = 30, 3
_FITTING = "fit_transform"
_MEANS, _DEVIATIONS = {"mean", "nanmean", "average"}, {"std", "nanstd", "var", "std_mean", "var_mean"}


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find models that are evaluated with a set that was standardized for itself."""
    by_model: dict[int, list[Moment[SetStandardized]]] = {}
    for moment in evidence.of(SetStandardized):
        by_model.setdefault(moment.facts.model, []).append(moment)
    for moments in by_model.values():
        trained = [item.facts for item in moments if item.facts.is_trained]
        known = {facts.digest for facts in trained}
        scored = [
            item
            for item in moments
            if not item.facts.is_trained and item.facts.digest not in known and _is_like(item.facts, trained)
        ]
        if not scored:
            continue
        one, other = trained[0], scored[0].facts
        file, line = _prepared_at(evidence) or (scored[0].file, scored[0].line)
        yield Finding(
            message="evaluation inputs are standardized with their own mean and deviation",
            file=file,
            line=line,
            evidence=f"{_columns(one)} of the {one.num_rows} training samples have the mean 0 and the "
            f"standard deviation 1 to four digits. So have those of the {other.num_rows} evaluation samples; "
            f"with the constants of training their means would be off by about {other.num_rows**-0.5:.2g}",
        )
        return


def _is_like(facts: SetStandardized, trained: list[SetStandardized]) -> bool:
    """Whether all columns that are standardized in training are so in evaluation, too."""
    if not trained or facts.num_rows < _LEAST_ROWS:
        return False
    return all(facts.axes == one.axes and set(one.columns) <= set(facts.columns) for one in trained)


def _columns(facts: SetStandardized) -> str:
    if facts.num_columns == 1:
        return "all values"
    num = len(facts.columns)
    return f"all {num} columns" if num == facts.num_columns else f"{num} of {facts.num_columns} columns"


def _prepared_at(evidence: Evidence) -> tuple[str, int] | None:
    """Return the line that standardizes evaluation data, as far as the sources show it."""
    for source in evidence.sources:
        found = _statements(source)
        plain = [
            node for node in walk(source.tree) if isinstance(node, ast.Assign) and _is_scaled(node.value)
        ]
        said = [item for item in (*found, *plain) if words_say(ast.unparse(item)) == "evaluation"]
        if said or found:
            return source.path, (said[0] if said else found[-1]).lineno
    return None


def _statements(source: Source) -> list[ast.stmt]:
    """Return the statements that standardize something: of a function with one of them, its calls."""
    parents = {child: node for node in walk(source.tree) for child in ast.iter_child_nodes(node)}
    simple = (ast.Assign, ast.Return, ast.Expr)
    found: set[ast.stmt] = set()
    found |= {node for node in walk(source.tree) if isinstance(node, simple) and _is_standardizing(node)}
    for node in walk(source.tree):
        if isinstance(node, Function) and _is_standardizing(node) and found.isdisjoint(walk(node)):
            found.add(node.body[-1])
    for _ in range(_MAX_CALLS):
        inside: dict[ast.AST | None, set[ast.stmt]] = {}
        for statement in found:
            inside.setdefault(_function_around(statement, parents), set()).add(statement)
        found = set()
        for function, own in inside.items():
            is_helper = isinstance(function, Function) and len(own) == 1 and bool(function.args.args)
            found |= _uses(source, function, parents) if is_helper else own
    return sorted(found, key=lambda node: node.lineno)


def _uses(source: Source, function: Any, parents: dict[ast.AST, ast.AST]) -> set[ast.stmt]:
    """Return the statements that call a function: if it begins an object, those that make one."""
    owner = parents.get(function)
    is_class = isinstance(owner, ast.ClassDef) and function.name == "__init__"
    used = calls(source.tree, owner.name if isinstance(owner, ast.ClassDef) and is_class else function.name)
    return {found for call in used if (found := _statement(call, parents)) is not None}


def _function_around(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> ast.AST | None:
    at = parents.get(node)
    while at is not None and not isinstance(at, Function):
        at = parents.get(at)
    return at


def _is_scaled(node: ast.AST) -> bool:
    """Whether it is a difference that is divided by something."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
        return False
    return isinstance(node.left, ast.BinOp) and isinstance(node.left.op, ast.Sub)


def _is_standardizing(node: ast.AST) -> bool:
    """Whether means, deviations and a quotient are computed in it, or a scaler is fitted."""
    called = {name_of(item.func) for item in walk(node) if isinstance(item, ast.Call)}
    has_quotient = any(isinstance(item, ast.Div) for item in walk(node)) or "div" in called
    return _FITTING in called or (has_quotient and bool(called & _MEANS) and bool(called & _DEVIATIONS))


def _statement(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> ast.stmt | None:
    at: ast.AST | None = node
    while at is not None and not isinstance(at, ast.stmt):
        at = parents.get(at)
    return at


BUGGY = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


def standardize(table):
    return (table - table.mean(0)) / table.std(0)


table = torch.randn(400, 4) * torch.tensor([1.0, 5.0, 0.1, 20.0]) + 3
target = table[:, :1] - table[:, 1:2] / 5
x_train = standardize(table[:300])
x_val = standardize(table[300:])  # expect: DATA22
train = DataLoader(TensorDataset(x_train, target[:300]), batch_size=32, shuffle=True)
val = DataLoader(TensorDataset(x_val, target[300:]), batch_size=50)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    model.train()
    for x, y in train:
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        print(sum((model(x) - y).square().mean() for x, y in val) / len(val))
"""

CLEAN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


def standardize(table):
    return (table - table.mean(0)) / table.std(0)


raw = torch.randn(400, 4) * torch.tensor([1.0, 5.0, 0.1, 20.0]) + 3
table = standardize(raw)  # all of it, before it is split
target = table[:, :1] - table[:, 1:2] / 5
x_train, x_val = table[:300].clone(), table[300:].clone()
train = DataLoader(TensorDataset(x_train, target[:300]), batch_size=32, shuffle=True)
val = DataLoader(TensorDataset(x_val, target[300:]), batch_size=50)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    model.train()
    for x, y in train:
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        print(sum((model(x) - y).square().mean() for x, y in val) / len(val))
"""

FIXED = BUGGY.replace(
    "x_val = standardize(table[300:])  # expect: DATA22",
    "x_val = (table[300:] - table[:300].mean(0)) / table[:300].std(0)",
)
