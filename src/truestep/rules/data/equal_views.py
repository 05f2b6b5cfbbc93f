"""The two views of a sample that a loss compares are equal.

## What it finds
A loss that compares the outputs of two passes of a model with each other, row by row, which are equal in all
values. Both views come from one draw: the transform ran once, or the generator was seeded again for the
second view.

## Why it matters
A contrastive or consistency loss learns from what differs between two views. If nothing differs, any network
solves the task from the start. The loss falls, and the features learn no invariance.

## How to fix
Draw twice: call the transform once for each view, and do not seed between the calls.
"""

import ast
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.flow import OperationGraph
from truestep.rules.kit.grouping import grouped, lasting, steps_of
from truestep.rules.kit.where import assignments, covers, defined, nodes
from truestep.watch import Moment, Operation
from truestep.watch.evidence.facts.passes import BackwardPass, EqualCompared, ForwardPass
from truestep.watch.evidence.operation import In

RULE = Meta(
    code="DATA13",
    severity="error",
    needs=(ForwardPass, BackwardPass),
    fix="Draw each view with its own call of the transform.",
)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find views that were drawn once."""
    flow, sizes = evidence.flow, {}
    for moment in evidence.of(EqualCompared):
        operation = flow.at(moment.facts.operation_index)
        if operation is not None and _are_two_passes(flow, operation):
            sizes[operation] = moment.facts.num_values
    for operations in lasting(sizes):
        steps = steps_of(operations)
        passes = [moment for moment in evidence.of(ForwardPass) if moment.step == min(steps)]
        seconds = [moments[1] for moments in grouped(passes, "facts.model").values() if len(moments) > 1]
        if not seconds:
            continue
        file, line = _made_at(evidence, seconds[0])
        yield Finding.at(
            operations[0],
            "both views are equal: the loss compares each sample with itself",
            file=file,
            line=line,
            count=len(steps),
            evidence=f"in {len(steps)} steps the outputs of two passes are compared, and of their "
            f"{sizes[operations[0]]} values 0 differ. Two random views differ in most values",
        )
        return


def _are_two_passes(flow: OperationGraph, operation: Operation) -> bool:
    """Whether what is compared was computed by a model twice, and not copied or normalised twice."""
    first, second = (
        {item.index for item in flow.before(tensor, _trained_inputs) if item.phase == "forward"}
        for tensor in operation.ins[:2]
    )
    return bool(first and second) and not first & second


def _trained_inputs(operation: Operation) -> list[In]:
    return [tensor for tensor in operation.ins if tensor.has_grad]


def _made_at(evidence: Evidence, second: Moment[ForwardPass]) -> tuple[str | None, int | None]:
    """Return the line that makes the second view: an assignment, or the return of the dataset."""
    source = evidence.source(second.file)
    tree = ast.Module(body=[], type_ignores=[]) if source is None else source.tree
    around = [call for call in nodes(tree, ast.Call) if covers(call, second.line)]
    names = [item.id for call in around for item in call.args if isinstance(item, ast.Name)]
    for name in reversed(names):
        lines = [statement.lineno for statement, _ in assignments(tree, name)]
        before = [line for line in lines if line <= (second.line or 0)]
        if before:
            return second.file, before[-1]
    returns = [
        (source.path, node.lineno)
        for source in evidence.sources
        for function in defined(source.tree, "__getitem__", ast.FunctionDef)
        for node in nodes(function, ast.Return)
    ]
    return returns[0] if len(returns) == 1 else (second.file, second.line)
