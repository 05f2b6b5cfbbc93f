"""The two views of a sample that a loss compares are equal.

## What it finds
A step in which one model is called twice with bit-for-bit equal inputs and gives equal outputs, and the loss
compares both outputs with each other. Both views come from one draw: the transform ran once, or the generator
was seeded again for the second view.

## Why it matters
A contrastive or consistency loss learns from what differs between two views. If nothing differs, any network
solves the task from the start. The loss falls, and the features learn no invariance.

## How to fix
Draw twice: call the transform once for each view, and do not seed between the calls.
"""

import ast
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta, Source
from truestep.rules.kit.syntax import walk
from truestep.rules.kit.where import assignments, covers
from truestep.watch import Moment
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.passes import ForwardPass, ViewsEqual

RULE = Meta(
    code="DATA13",
    severity="error",
    needs=(ForwardPass, OptimizerStep),
    fix="Draw each view with its own call of the transform.",
)
_LEAST_STEPS = 2


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find views that were drawn once."""
    found: dict[tuple[str | None, int], list[Moment[ViewsEqual]]] = {}
    for moment in evidence.of(ViewsEqual):
        place = moment.facts.second_at
        found.setdefault((place.file, place.line), []).append(moment)
    reported = 0
    for (file, line), moments in found.items():
        if len({moment.step for moment in moments}) < _LEAST_STEPS or reported:
            continue
        reported += 1
        facts = moments[0].facts
        at = _made_at(evidence, evidence.source(file), line) or (file, line)
        yield Finding(
            message="both views are equal: the loss compares each sample with itself",
            file=at[0],
            line=at[1],
            step=moments[0].step + 1,
            count=len(moments),
            evidence=f"in {len(moments)} steps the model was called twice (lines {facts.first_at.line} and "
            f"{facts.second_at.line}) with inputs of shape {facts.shape}; {facts.num_values} values were "
            "compared and 0 differ, nor do the outputs. Two random views differ in most values",
        )


def _made_at(evidence: Evidence, source: Source | None, line: int) -> tuple[str, int] | None:
    """Return the line that makes the second view: an assignment, or the return of the dataset."""
    if source is None:
        return None
    names: list[str] = []
    for call in walk(source.tree):
        if isinstance(call, ast.Call) and covers(call, line):
            names += [item.id for item in call.args if isinstance(item, ast.Name)]
    for name in reversed(names):
        near = [statement.lineno for statement, _ in assignments(source.tree, name)]
        near = [number for number in near if number <= line]
        if near:
            return source.path, near[-1]
    return _returned_at(evidence) if _is_from_loop(source, names) else None


def _is_from_loop(source: Source, names: list[str]) -> bool:
    """Whether both views are variables of a loop, as over a loader."""
    loops = [node.target for node in walk(source.tree) if isinstance(node, ast.For)]
    inside = [{item.id for item in walk(target) if isinstance(item, ast.Name)} for target in loops]
    return any(len(set(names) & found) > 1 for found in inside)


def _returned_at(evidence: Evidence) -> tuple[str, int] | None:
    """Return the only line that returns a sample of a dataset of the user's."""
    lines = [
        (source.path, item.lineno)
        for source in evidence.sources
        for node in walk(source.tree)
        if isinstance(node, ast.FunctionDef) and node.name == "__getitem__"
        for item in walk(node)
        if isinstance(item, ast.Return)
    ]
    return lines[0] if len(lines) == 1 else None
