"""The model is resumed and the optimizer is not.

## What it finds
A run that continues from a checkpoint (it takes all of the model's weights and the epoch or step from it)
with a new optimizer that keeps state between steps, such as Adam or SGD with momentum.

## Why it matters
Momentum and step counts start from zero. The first updates after a restart are far too large or point in the
wrong direction, the loss jumps, and the run differs from one without the interruption.

## How to fix
Save `optimizer.state_dict()` in the checkpoint and load it with `optimizer.load_state_dict(...)` after the
model. Do the same for the scheduler and the gradient scaler.
"""

import ast
import re
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta, Source
from truestep.rules.kit.syntax import walk
from truestep.rules.kit.where import name_of
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.structure import CheckpointLoaded, ModelRefilled, OptimizerNotResumed

RULE = Meta(
    code="CKPT02",
    severity="warning",
    needs=(CheckpointLoaded, ModelRefilled, OptimizerStep),
    fix="Save optimizer.state_dict() as well, and load it where you load the model.",
)
_UNITS = frozenset(("epoch", "step", "iter", "iteration", "batch"))
_MANY = frozenset(f"{unit}s" for unit in _UNITS)
_DONE = frozenset(("run", "done", "trained", "completed", "finished", "seen", "passed", "so"))
_COUNTS = frozenset(("num", "n", "max", "min", "total"))
_SETTINGS = frozenset(
    ("size", "per", "every", "warmup", "time", "interval", "freq", "loss", "losses", "history")
)
_PRINTING = ("print", "info", "debug", "warning", "write", "log", "echo")


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find optimizers that start over in a run that is resumed."""
    for moment in evidence.of(OptimizerNotResumed):
        facts = moment.facts
        progress = [key for key in facts.checkpoint.keys if _is_progress(key)]
        used = [key for key in progress if any(_is_used(source, key) for source in evidence.sources)]
        if used and facts.kept_names:
            has = (
                "has the optimizer's state, but it is not loaded"
                if facts.checkpoint.num_optimizers
                else "does not have the optimizer's state"
            )
            yield Finding.at(
                moment,
                f"the model is resumed, but {facts.class_name} starts without its state",
                evidence=f"weights and {', '.join(used)} come from the checkpoint; the optimizer keeps "
                f"{', '.join(facts.kept_names)} and started without them; the checkpoint {has}",
            )


def _is_progress(key: str) -> bool:
    """Whether it says how far training has come: `epoch` and `steps_done` do, `num_steps` does not."""
    words = re.findall("[a-z]+", re.sub("(?<=[a-z])(?=[A-Z])", "_", key).lower())
    if not words or words[0] in _COUNTS or not _SETTINGS.isdisjoint(words):
        return False
    is_many = not _MANY.isdisjoint(words) and (len(words) == 1 or not _DONE.isdisjoint(words))
    return is_many or not _UNITS.isdisjoint(words)


def _is_used(source: Source, key: str) -> bool:
    """Whether the script takes this from the checkpoint, and not only to show it."""
    shown = {
        id(inner)
        for node in walk(source.tree)
        if isinstance(node, ast.Call) and name_of(node.func) in _PRINTING
        for inner in walk(node)
    }
    return any(_is_read(node, key) and id(node) not in shown for node in walk(source.tree))


def _is_read(node: ast.AST, key: str) -> bool:
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        return isinstance(node.slice, ast.Constant) and node.slice.value == key
    if isinstance(node, ast.Call) and name_of(node.func) in ("get", "pop") and node.args:
        return isinstance(node.args[0], ast.Constant) and node.args[0].value == key
    return False
