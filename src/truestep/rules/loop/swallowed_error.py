"""An error while the loss is computed or applied is swallowed: training continues without that batch.

## What it finds
A `try` around the loss, `backward()` or `step()`, in a loop, with an `except` that catches every kind of
error and does nothing.

## Why it matters
A misspelled name, a shape that does not match or a batch without labels then looks like a batch that was
trained on. All batches may fail, and the log still shows a loss.

## How to fix
Catch the one kind of error that you expect, and count or print it. Let all others end the script.
"""

import ast
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta, Source
from truestep.rules.analysis.places import Function, covers, name_of
from truestep.rules.analysis.syntax import walk
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.passes import BackwardPass, ForwardPass

RULE = Meta(
    code="LOOP16",
    severity="warning",
    needs=(BackwardPass,),
    fix="Catch only the error you expect, and count or print it.",
    is_preview=True,
)
_BROAD = frozenset({"", "Exception", "BaseException"})


def is_observed(evidence: Evidence) -> bool:
    """Whether the script catches errors at all."""
    return any("except" in source.text for source in evidence.sources)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find errors that are swallowed where the loss is made or used."""
    trained = {(moment.file, moment.line) for moment in evidence.of(ForwardPass, BackwardPass, OptimizerStep)}
    for source in evidence.sources:
        for node in _tries(source):
            swallowing = [item for item in node.handlers if _is_broad(item) and _does_nothing(item)]
            is_meant = swallowing and any(_is_training(item) for item in node.body)
            if is_meant and _is_reached(evidence, source, node, trained=trained):
                yield Finding(
                    message="errors in this part of the step are ignored: training skips the batch",
                    file=source.path,
                    line=swallowing[0].lineno,
                    evidence=f"every error from line {node.lineno + 1} on is caught and ignored",
                )


def _tries(source: Source) -> Iterator[ast.Try]:
    """Yield `try` in loops."""
    seen: set[int] = set()
    for loop in walk(source.tree):
        if isinstance(loop, ast.For | ast.While):
            for node in walk(loop):
                if isinstance(node, ast.Try) and id(node) not in seen:
                    seen.add(id(node))
                    yield node


def _is_reached(
    evidence: Evidence, source: Source, node: ast.Try, *, trained: set[tuple[str | None, int | None]]
) -> bool:
    """Whether training came by: in the `try` itself, or in a function of the script's that it calls."""
    if any(file == source.path and covers(item, line) for item in node.body for file, line in trained):
        return True
    called = {
        name_of(item.func)
        for statement in node.body
        for item in walk(statement)
        if isinstance(item, ast.Call)
    }
    functions = [
        (other.path, item)
        for other in evidence.sources
        for item in walk(other.tree)
        if isinstance(item, Function) and item.name in called
    ]
    return any(path == file and covers(item, line) for path, item in functions for file, line in trained)


def _is_broad(handler: ast.ExceptHandler) -> bool:
    return (ast.unparse(handler.type) if handler.type is not None else "") in _BROAD


def _does_nothing(handler: ast.ExceptHandler) -> bool:
    return all(isinstance(item, ast.Pass | ast.Continue) for item in handler.body)


def _is_training(statement: ast.stmt) -> bool:
    """Whether a statement collects a loss, or is a step of training."""
    if isinstance(statement, ast.Assign | ast.AugAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        if any("loss" in ast.unparse(item).lower() for item in targets):
            return True
    for node in walk(statement):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "backward" or (node.func.attr == "step" and not node.args):
                return True
            is_kept = node.func.attr == "append" and "loss" in ast.unparse(node).lower()
            if is_kept and not any(word in ast.unparse(node) for word in (".item(", "float(")):
                return True
    return False
