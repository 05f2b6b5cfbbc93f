"""Softmax is applied before a loss that applies it too, or that expects log-probabilities.

## What it finds
Cross entropy on probabilities: the output of a softmax, with only copies, views or factors in between, or
rows that are not negative and sum to one. Also `nll_loss` on probabilities or raw scores instead of
log-probabilities.

## Why it matters
`cross_entropy` combines log-softmax and negative log-likelihood. On numbers between zero and one it can never
become small, however sure the model is, and its gradients are a fraction of what they should be. The model
still learns, only slowly and to a worse result, so nothing looks broken.

## How to fix
Return raw scores (logits) from the model and pass them to the loss. Apply softmax only where you need
probabilities: in evaluation and for logging.
"""

import ast
from collections.abc import Iterator
from typing import Any

from truestep.rules import Edit, Evidence, Finding, Meta, Source
from truestep.rules.kit.edits import call_at, replace_node, text_of
from truestep.rules.kit.flow import LINEAR, NLL, SOFTMAX, OperationGraph, place_of, size_of
from truestep.rules.kit.syntax import walk
from truestep.rules.kit.where import argument, name_of, nodes
from truestep.watch import Operation
from truestep.watch.evidence.facts.passes import ScoresNormalised

RULE = Meta(
    code="LOSS01",
    severity="error",
    is_observed=lambda evidence: evidence.flow.has("_log_softmax", "logsumexp", *NLL),
    is_lasting=True,
    fix="Pass the raw scores to the loss; apply softmax only where you need probabilities.",
)
_RANKING = frozenset({"argmax", "max", "topk", "sort", "detach"})


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find losses whose input was normalised before."""
    yield from [*_find(evidence, is_trained=True)] or _find(evidence, is_trained=False)


def _find(evidence: Evidence, *, is_trained: bool) -> Iterator[Finding]:
    yield from _normalised_twice(evidence, evidence.flow, is_trained=is_trained)
    yield from _no_logarithms(evidence.flow, is_trained=is_trained)


def _normalised_twice(evidence: Evidence, flow: OperationGraph, *, is_trained: bool) -> Iterator[Finding]:
    read = {moment.facts.operation_index: moment.facts for moment in evidence.of(ScoresNormalised)}
    for operation in flow.named("_log_softmax", "logsumexp"):
        if not _is_compared(flow, operation, is_trained=is_trained) or size_of(operation) < 2:
            continue
        first = flow.source(operation.ins[0])
        is_softmax = first is not None and first.kind in SOFTMAX and size_of(first) == size_of(operation)
        facts = read.get(operation.index)
        details: dict[str, Any] = {}
        if is_softmax and first is not None:
            evidence_text = f"softmax {place_of(first, operation.file)}, then log-softmax in the loss"
            before = flow.source(first.ins[0])
            if before is not None and before.kind in SOFTMAX:
                evidence_text += f", after one more {place_of(before, operation.file)}"
                details = {"is_edited": False}  # without this one, the other is left
            elif first.file == operation.file:
                details = {"softmax_line": first.line}
        elif facts is not None and facts.is_distribution:
            evidence_text = "the loss's input is between 0 and 1 and sums to 1 over the classes"
        else:
            continue
        if facts is not None:
            evidence_text += f"; values from {facts.lowest:.3g} to {facts.highest:.3g}"
        yield Finding.at(
            operation,
            "the loss applies softmax to the output of a softmax",
            evidence=f"{evidence_text}, {size_of(operation)} classes",
            details=details,
        )


def _is_compared(flow: OperationGraph, operation: Operation, *, is_trained: bool) -> bool:
    """Whether scores are trained, or compared with labels in an evaluation."""
    is_loss = any(user.kind in NLL for user in flow.users(operation))
    return (is_trained or is_loss) and flow.is_scored(operation.ins[0], is_trained=is_trained)


def _no_logarithms(flow: OperationGraph, *, is_trained: bool) -> Iterator[Finding]:
    for operation in flow.named(*NLL):
        is_scored = flow.is_scored(operation.ins[0], is_trained=is_trained)
        first = flow.source(operation.ins[0]) if is_scored else None
        if first is None:
            continue
        if first.kind in SOFTMAX:
            what = "probabilities"
        elif first.kind in LINEAR:
            what = "raw scores"
        else:
            continue
        is_only_scored = first.kind in SOFTMAX and first.file is not None and _is_only_scored(flow, first)
        yield Finding.at(
            first if is_only_scored else operation,
            f"nll_loss gets {what} instead of log-probabilities",
            evidence=f"its input comes from {first.name} {place_of(first, operation.file)}, and the loss is "
            f"computed {place_of(operation, first.file)}",
            fix="Use cross_entropy on the raw scores, or log_softmax before nll_loss.",
        )


def _is_only_scored(flow: OperationGraph, softmax: Operation) -> bool:
    """Whether nothing but a loss needs the probabilities: the largest of them is also that of logarithms."""
    users = [item for item in flow.users(softmax) if item.kind not in _RANKING]
    return len(users) == 1


def make_edits(source: Source, finding: Finding) -> list[Edit]:
    """Give the loss the scores that softmax was given, where softmax is called by the script itself."""
    if not finding.details.get("is_edited", True):
        return []
    call = call_at(source, finding.details.get("softmax_line"), name="softmax")
    if call is None:
        stacks = [node for node in walk(source.tree) if _ends_in_softmax(node)]
        return _without_last(source, stacks[0]) if len(stacks) == 1 else []  # type: ignore[arg-type]
    scores = _scores_of(source, call)
    return replace_node(source, call, text=text_of(source, scores)) if scores is not None else []


def _scores_of(source: Source, call: ast.Call) -> ast.expr | None:
    """Return what softmax is applied to: the first argument of a function, the owner of a method."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    modules = {(item.asname or item.name).partition(".")[0] for item in nodes(source.tree, ast.alias)}
    if owner is None or name_of(owner) == "self" or text_of(source, owner).partition(".")[0] in modules:
        return argument(call, "input", place=0)
    return owner


def _ends_in_softmax(node: ast.AST) -> bool:
    """Whether it is a call, as of Sequential, whose last argument is a layer of softmax."""
    if not isinstance(node, ast.Call) or len(node.args) < 2 or not isinstance(node.args[-1], ast.Call):
        return False
    layer = node.args[-1].func
    return getattr(layer, "attr", getattr(layer, "id", "")) == "Softmax"


def _without_last(source: Source, call: ast.Call) -> list[Edit]:
    """Leave out the last layer of a Sequential, which has a line of its own or the end of one."""
    before, last = call.args[-2], call.args[-1]
    if last.lineno == before.end_lineno:
        whole = source.line(last.lineno).encode()
        kept = whole[: before.end_col_offset] + whole[last.end_col_offset or 0 :]
        return [Edit(first=last.lineno, last=last.lineno, lines=(kept.decode(),))]
    rest = source.line(last.end_lineno or last.lineno).encode()[last.end_col_offset or 0 :].decode()
    is_alone = last.lineno == last.end_lineno and rest.partition("#")[0].strip() in ("", ",")
    return [Edit(first=last.lineno, last=last.lineno, lines=())] if is_alone else []
