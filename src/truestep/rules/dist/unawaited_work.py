"""The result of an asynchronous collective is used without waiting for it.

## What it finds
A collective with `async_op=True`, or `isend` and `irecv`, whose handle is thrown away, in a job of several
processes: no code can wait for it.

## Why it matters
The call returns before the tensor has arrived. What reads it afterwards gets the old value, the new one, or
half of each, depending on the timing. At the end, `destroy_process_group` can cut off what is still under
way.

## How to fix
Keep the handle and wait before you use the tensor: `work = dist.all_reduce(x, async_op=True)`, later
`work.wait()`. If nothing runs in between, leave `async_op` out.
"""

import ast
import re
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.syntax import walk
from truestep.rules.kit.where import name_of
from truestep.watch.evidence.facts.surroundings import GroupJoined

RULE = Meta(
    code="DIST17",
    severity="error",
    is_observed=lambda evidence: evidence.has_ranks,
    needs=(GroupJoined,),
    fix="Keep the handle and call its wait() before you use the tensor.",
)
_COLLECTIVES = frozenset(
    (
        *("all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter", "reduce_scatter"),
        *("all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all", "all_to_all_single"),
    )
)
_PAIRS = ("isend", "irecv")
_WAITS = re.compile(r"synchronize\(")
"""A wait for the whole device ends all work of NCCL."""


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find handles that are thrown away."""
    for source in evidence.sources:
        if _WAITS.search(source.text):
            continue
        for call, how in _thrown_away(source.tree):
            name = (name_of(call.func) or "").rpartition(".")[2]
            yield Finding(
                message=f"{name} returns before it is done, and its handle is {how}: nothing waits for it",
                file=source.path,
                line=call.lineno,
                evidence="the call is asynchronous; the tensor can be read before it has arrived",
            )


def _thrown_away(tree: ast.Module) -> Iterator[tuple[ast.Call, str]]:
    """Yield calls whose handle is not kept, or is kept under a name that is never read."""
    read = {node.id for node in walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    for node in walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _is_asynchronous(node.value):
            yield node.value, "thrown away"
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            names = [item.id for item in node.targets if isinstance(item, ast.Name)]
            is_read = len(names) < len(node.targets) or bool(read & set(names))
            if _is_asynchronous(node.value) and not is_read:
                yield node.value, "never used"


def _is_asynchronous(call: ast.Call) -> bool:
    name = name_of(call.func) or ""
    owner, _, last = name.rpartition(".")
    if owner.rpartition(".")[2] not in ("", "dist", "distributed", "c10d"):
        return False
    is_asked = any(
        item.arg == "async_op" and isinstance(item.value, ast.Constant) and item.value.value is True
        for item in call.keywords
    )
    return (last in _COLLECTIVES and is_asked) or (last in _PAIRS and bool(owner))
