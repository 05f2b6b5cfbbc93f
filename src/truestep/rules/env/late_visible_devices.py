"""CUDA_VISIBLE_DEVICES is set after CUDA has started.

## What it finds
A script that sets `os.environ["CUDA_VISIBLE_DEVICES"]` after a line that calls `torch.cuda.is_available()` or
puts something on a GPU.

## Why it matters
CUDA reads the variable once, when it starts, and `is_available()` starts it. A later value is ignored: the
script runs on a different GPU than the one you chose, often one that someone else is using. It can also cause
"CUDA unknown error".

## How to fix
Set it outside (`CUDA_VISIBLE_DEVICES=1 python train.py`), or in the first lines of the script, before torch
is used. To choose a device later, name it: `torch.device("cuda:1")`.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from truestep.rules import Evidence, Finding, Meta
from truestep.watch.evidence.facts.optimizing import OptimizerStep

RULE = Meta(
    code="ENV19",
    severity="warning",
    needs=(OptimizerStep,),
    fix="Set it before Python starts, or in the script's first lines; later, name the device: cuda:1.",
    is_preview=True,
)
_NAME = "CUDA_VISIBLE_DEVICES"
_STARTS = frozenset(
    f"torch.cuda.{name}"
    for name in ("is_available", "init", "set_device", "current_device", "get_device_name", "synchronize")
)
_FOR_OTHERS = ("subprocess", "multiprocessing", "spawn", "Popen")
"""A script that starts others may set it for them."""

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def is_observed(evidence: Evidence) -> bool:
    """Whether the script has to do with the variable at all."""
    return bool(evidence.processes) and any(_NAME in source.text for source in evidence.sources)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find variables that are set too late."""
    for source in evidence.sources:
        if _NAME not in source.text or any(word in source.text for word in _FOR_OTHERS):
            continue
        found = _Order()
        found.read(source.tree, scope=None, tested=())
        for line, start in found.late():
            yield Finding(
                message=f"{_NAME} is set after CUDA has started, so it is ignored",
                file=source.path,
                line=line,
                step=0,
                evidence=f"CUDA reads it when it starts, at line {start}: {source.line(start).strip()}",
            )


@dataclass
class _Order:
    """Where the variable is set and where CUDA starts: lines, and the functions that they are in."""

    settings: list[tuple[int, ast.AST | None, tuple[int, ...]]] = field(default_factory=list)
    starts: list[tuple[int, ast.AST | None]] = field(default_factory=list)

    def read(self, node: ast.AST, *, scope: ast.AST | None, tested: tuple[int, ...]) -> None:
        """Go through a tree; `tested` are the lines of the conditions that lead here."""
        if isinstance(node, Function):
            scope = node
        if _sets(node):
            self.settings.append((node.lineno, scope, tested))  # type: ignore[attr-defined]
        if isinstance(node, ast.Call) and _starts(node):
            self.starts.append((node.lineno, scope))
        if isinstance(node, ast.If | ast.IfExp):
            tested = (*tested, node.test.lineno)
        for child in ast.iter_child_nodes(node):
            self.read(child, scope=scope, tested=tested)

    def late(self) -> Iterator[tuple[int, int]]:
        """Yield lines that set it, each with the line above it that has started CUDA."""
        first = min((line for line, _, _ in self.settings), default=0)
        for line, scope, tested in self.settings:
            for start, where in self.starts:
                # What stands in a condition that leads here is a question, not yet a start.
                if start < line and start < first and where in (None, scope) and start not in tested:
                    yield line, start
                    break


def _sets(node: ast.AST) -> bool:
    if isinstance(node, ast.Assign):
        return any(
            isinstance(target, ast.Subscript)
            and ast.unparse(target.value).endswith("environ")
            and isinstance(target.slice, ast.Constant)
            and target.slice.value == _NAME
            for target in node.targets
        )
    return False


def _starts(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    if name in _STARTS or (name.endswith(".cuda") and name != "torch.cuda"):
        return True
    values = [*call.args[:1], *(item.value for item in call.keywords if item.arg == "device")]
    is_moved = name.endswith(".to") or name.startswith("torch.")
    return is_moved and name != "torch.device" and any(map(_is_gpu, values))


def _is_gpu(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and str(value.value).startswith("cuda")
