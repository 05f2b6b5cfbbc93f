"""Dropout is still active while the model is in eval mode.

## What it finds
Dropout that draws during a forward pass in eval mode: `F.dropout` without `training=self.training`, attention
with a fixed `dropout_p`, or an `nn.Dropout` that is created inside `forward` or stored where `eval()` does
not reach it. Dropout layers that the script switches back on, and one input passed through many times
(Monte-Carlo dropout), are not reported.

## Why it matters
Predictions are random and worse than necessary. Validation scores are too low and change from run to run.
"""

import ast
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta, Source
from truestep.rules.kit.edits import Edit, around, call_at, last_argument, replace_node, text_of
from truestep.rules.kit.flow import OperationGraph, number_of
from truestep.rules.kit.where import innermost
from truestep.rules.mode._passes import Pass, is_repeated, read_passes, runs_of
from truestep.watch import Operation
from truestep.watch.evidence.facts.passes import ForwardPass

RULE = Meta(
    code="MODE04",
    severity="warning",
    is_observed=lambda evidence: any(item.in_evaluation or item.is_foreign for item in evidence.operations),
    needs=(ForwardPass,),
    fix="Pass training=self.training, or use an nn.Dropout that is created in __init__.",
)
_DRAWING = ("rand", "rand_like", "bernoulli", "uniform")
_THRESHOLDS = ("lt", "le", "gt", "ge", "floor")
_PASSING = ("add", "div", "_to_copy", "view", "expand", "unsqueeze", "rsub", "bernoulli")
_MAX_DEPTH = 5
_MAX_PARTS = 4
"""How often in a row an input that is trained on is scored: training, validation, test nodes; all again."""
_WHOLE = ("native_dropout", "_fused_dropout", "dropout", "feature_dropout", "alpha_dropout")


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find dropout that draws in eval mode."""
    passes = read_passes(evidence)
    trained = {item.facts.given for item in passes if item.is_used}
    if any(_is_sampled(run, trained) for run in runs_of(p for p in passes if not p.facts.is_training)):
        return
    flow = evidence.flow
    for operation in flow.all:
        if not (operation.in_evaluation or operation.is_foreign) or not operation.is_random:
            continue
        if operation.phase == "forward" and _is_dropout(flow, operation):
            where = f"in {operation.module}" if operation.module else "in the model itself"
            how = "a layer that eval() does not reach" if operation.is_foreign else "a module in eval mode"
            yield Finding.at(
                operation,
                "dropout is still active in eval mode",
                evidence=f"{operation.name} drew {where}, {how}, on shape {_shape(operation)}",
            )


def _is_sampled(run: list[Pass], trained: set[int]) -> bool:
    """Whether one input is passed through for its spread; a whole graph is also scored part by part."""
    is_whole = all(item.facts.given in trained for item in run)
    return is_repeated(run) and len(run) > (_MAX_PARTS if is_whole else 2)


def _shape(operation: Operation) -> tuple[int, ...]:
    if operation.ins:
        return tuple(operation.ins[0].shape)
    return tuple(operation.outs[0].shape) if operation.outs else ()


def _is_dropout(flow: OperationGraph, operation: Operation) -> bool:
    name = operation.kind
    if name in _WHOLE or name.startswith(("scaled_dot_product", "_scaled_dot_product")):
        return True
    if name != "bernoulli" or not operation.is_in_place:
        return name in _DRAWING and _is_own(flow, operation)
    # On the CPU dropout is a mask that is drawn, scaled, and multiplied with.
    made = flow.maker(operation.ins[0])
    is_new = made is not None and made.kind.startswith("empty")
    is_scaled = any(user.kind == "div" and user.is_in_place for user in flow.users(operation))
    return is_new and (is_scaled or _is_own(flow, operation))


def _is_own(flow: OperationGraph, operation: Operation) -> bool:
    """Whether what is drawn becomes a mask that is multiplied with, made up for by the share that is kept.

    Without that it may be any mask: of tokens to be guessed, or of labels that a sampler goes without.
    """
    found, is_mask = [operation], operation.kind == "bernoulli"
    is_scaled = False
    for _ in range(_MAX_DEPTH):
        users = [user for item in found for user in flow.users(item)]
        is_mask = is_mask or any(user.kind in _THRESHOLDS for user in users)
        is_scaled = is_scaled or any(map(_is_rescaling, users))
        products = [user for user in users if user.kind == "mul" and len(user.ins) > 1]
        if products and is_mask:
            beside = [flow.maker(given) for item in products for given in item.ins]
            after = [user for item in products for user in flow.users(item)]
            return is_scaled or any(_is_rescaling(item) for item in (*beside, *after) if item is not None)
        found = [user for user in users if user.kind in (*_THRESHOLDS, *_PASSING)]
    return False


def _is_rescaling(operation: Operation) -> bool:
    """Whether it divides by a number between 0 and 1."""
    number = number_of(operation)
    is_share = number is not None and 0 < number < 1
    return operation.kind == "div" and len(operation.ins) == 1 and is_share


def make_edits(source: Source, finding: Finding) -> list[Edit]:
    """Pass the module's mode to `dropout`, in a method of a module."""
    call = call_at(source, finding.line, name="dropout")
    method = around(source, finding.line, ast.FunctionDef)
    owner = innermost(source.tree, finding.line, ast.ClassDef)
    has_mode = owner is not None and bool(owner.bases)  # a plain class has none
    is_method = method is not None and method.args.args[:1] and method.args.args[0].arg == "self"
    if call is None or not call.args or not (has_mode and is_method) or len(call.args) > 2:
        return []
    for item in call.keywords:
        if item.arg == "training":
            return replace_node(source, item.value, text="self.training")
    last = last_argument(call)
    return replace_node(source, last, text=f"{text_of(source, last)}, training=self.training")
