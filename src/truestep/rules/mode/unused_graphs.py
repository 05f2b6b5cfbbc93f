"""An evaluation builds graphs that no backward pass uses.

## What it finds
Forward passes that evaluate a trained model and build an autograd graph that no backward pass reaches. It is
`info` if other passes in eval mode need their gradients, as in an evaluation with attacks.

## Why it matters
Every activation of the pass stays in memory for a gradient that is never computed. Evaluation needs as much
memory as training, limits the batch size, and is slower than necessary. If the script also stores a result
with its graph, memory grows until the process is killed.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from truestep.rules import Edit, Evidence, Finding, Meta, Source
from truestep.rules.kit.edits import around, decorate, put_under
from truestep.rules.kit.syntax import walk
from truestep.rules.kit.where import name_of
from truestep.rules.mode._passes import (
    MIN_RUN,
    Pass,
    by_place,
    called_from,
    evaluation_line,
    evaluation_loaders,
    fed_by,
    has_evaluation_run,
    owners,
    read_passes,
    trained_by_hand,
    trains,
)
from truestep.watch import Moment
from truestep.watch.evidence.facts.passes import BackwardPass, ForwardPass, PassExamined

RULE = Meta(
    code="MODE02",
    severity="warning",
    is_observed=lambda evidence: any(not item.is_used for item in read_passes(evidence)),
    needs=(PassExamined, BackwardPass),
    fix="Run this evaluation under torch.no_grad() or torch.inference_mode().",
)
_MIN_EVAL = 2
_EVALUATION = re.compile(r"eval|valid|test|accura|score|metric|predict|infer", re.IGNORECASE)
_NEAR = 10
"""Lines between a loop and a pass in it."""


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find passes of a trained model that evaluate it, with graphs that are not used."""
    passes = read_passes(evidence)
    trained, by_hand = owners(evidence), trained_by_hand(evidence, passes)
    loaders, fed = evaluation_loaders(evidence, passes), fed_by(evidence, passes)
    unused = [item for item in passes if item.facts.has_graph and not item.is_used]
    idle = [item for item in unused if item.facts.model in trained]
    in_eval = defaultdict(list)
    for item in [*idle, *(item for item in unused if item.facts.model in by_hand)]:
        if not item.facts.is_training:  # of whatever model: folds and searches make one after the other
            in_eval[item.place[:2]].append(item)
    certain = {
        place: found
        for place, found in in_eval.items()
        if len(found) >= _MIN_EVAL or (_says_so(found) and found[0].facts.size > 1)
    }
    # An attack or a map of saliency needs gradients in an evaluation: it cannot be put under no_grad().
    # Where the model is also trained in train mode, train() is missing after an evaluation.
    used = {item.place for item in passes if item.is_used}
    training = {item.place for item in passes if item.is_used and item.facts.is_training}
    with_gradients = {
        item.facts.model
        for item in passes
        if item.is_used and not item.facts.is_training and item.place not in training
    }
    for found in certain.values():
        finding = _finding(evidence, found)
        yield replace(finding, severity="info") if found[0].facts.model in with_gradients else finding
    for place, group in by_place(idle).items():
        if place[:2] in certain:
            continue
        found = [item for item in group if fed.get(item.facts.number) in loaders]
        is_evaluation = has_evaluation_run(group) and _is_evaluation(
            evidence, group, is_own=place not in used
        )
        if len(found) < MIN_RUN and is_evaluation:
            found = group
        if len(found) >= MIN_RUN:
            yield _finding(evidence, found)


def _is_evaluation(evidence: Evidence, group: list[Pass], *, is_own: bool) -> bool:
    """Whether training is over, or the function says what it is for; inputs are batches."""
    is_over = evidence.first.ended == "finished" and all(
        item.moment.step == evidence.first.num_steps for item in group
    )
    if min(item.facts.size for item in group) < 2:  # one observation after the other: a policy plays
        return is_over and is_own
    return is_over or _says_so(group)


def _says_so(group: list[Pass]) -> bool:
    """Whether the function's name says that it evaluates."""
    return bool(_EVALUATION.search(group[0].moment.function or ""))


def _finding(evidence: Evidence, found: list[Pass]) -> Finding:
    first = found[0]
    places = {(item.moment.line, item.facts.model) for item in found}
    times = [
        moment.took_s for moment in evidence.of(ForwardPass) if (moment.line, moment.facts.model) in places
    ]
    mode = "train" if first.facts.is_training else "eval"
    moment = called_from(evidence, first.moment)
    line = _line(evidence, moment)
    where = "" if line == first.moment.line else f"; the first is at line {first.moment.line}"
    return Finding.at(
        moment,
        "this evaluation builds an autograd graph that is never used: torch.no_grad() is missing",
        line=line,
        evidence=f"{len(found)} passes in {mode} mode with gradients enabled; no backward pass reached one"
        f"{where}",
        details={"called": moment.line},
        cost=f"each pass keeps its activations in memory; these passes took {1e3 * sum(times):.1f} ms",
    )


def _line(evidence: Evidence, moment: Moment[Any]) -> int | None:
    """Return the line of the loop that evaluates, if it is near the pass; else that of the pass.

    Where the script decorates other functions, the one that evaluates lacks a decorator.
    """
    source = evidence.source(moment.file)
    function = None if source is None else around(source, moment.line, ast.FunctionDef)
    if source is not None and function is not None and not trains(function) and _decorates(source):
        first_line: int = min([function.lineno, *(item.lineno for item in function.decorator_list)])
        return first_line
    line, called = evaluation_line(evidence, moment), moment.line
    return line if line is not None and called is not None and called - line <= _NEAR else called


def _decorates(source: Source) -> bool:
    """Whether a function of the script has a decorator that turns gradients off."""
    functions = (node for node in walk(source.tree) if isinstance(node, ast.FunctionDef))
    names = {name_of(getattr(item, "func", item)) for node in functions for item in node.decorator_list}
    return not names.isdisjoint({"no_grad", "inference_mode"})


def make_edits(source: Source, finding: Finding) -> list[Edit]:
    """Put the function that evaluates, or the loop, under `torch.no_grad()`."""
    if finding.severity == "info" or not re.search(r"^import torch$", source.text, re.MULTILINE):
        return []
    line = finding.details.get("called")
    function = around(source, line, ast.FunctionDef)
    if function is not None and not trains(function):
        return decorate(source, function, text="@torch.no_grad()")
    loop = around(source, line, ast.For)
    if loop is None or trains(loop):
        return []
    return put_under(source, loop, header="with torch.no_grad():")
