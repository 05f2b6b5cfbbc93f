"""A model is evaluated in train mode.

## What it finds
Forward passes whose results no training step uses (validation, test, prediction, sampling) while layers that
behave differently in training are in train mode: dropout, BatchNorm, noise. Passes that serve training
(targets, pseudo-labels, samples for a critic, recomputed statistics) and Monte-Carlo dropout are not
reported.

## Why it matters
Dropout makes predictions random and worse. BatchNorm normalizes each validation batch separately, so the
result depends on how the data are split into batches. It also moves its running statistics towards the
validation data: every evaluation changes the model.
"""

import ast
from collections.abc import Iterator

from truestep.rules import Edit, Evidence, Finding, Meta, Source
from truestep.rules.kit.bindings import parents_of
from truestep.rules.kit.edits import insert_after, insert_before, statement_of, text_of
from truestep.rules.kit.syntax import walk
from truestep.rules.kit.where import covers
from truestep.rules.mode._passes import (
    Pass,
    by_place,
    called_from,
    evaluation_line,
    evaluation_loaders,
    fed_by,
    has_evaluation_run,
    is_repeated,
    is_thrown_away,
    layers_text,
    read_passes,
    runs_of,
    trains,
)
from truestep.watch import Moment
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.passes import ModeSet, PassExamined

RULE = Meta(
    code="MODE01",
    severity="error",
    is_observed=lambda evidence: any(item.num_layers and not item.is_used for item in read_passes(evidence)),
    needs=(PassExamined,),
    fix="Call .eval() on this module before the evaluation, and .train() before training continues.",
)
_MIN_STEPS = 3
_MIN_SAMPLES = 4
_COMPREHENSIONS = ast.ListComp | ast.GeneratorExp | ast.SetComp


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find evaluation passes through layers that are in train mode."""
    passes = read_passes(evidence)
    trained_on = {(item.facts.model, item.facts.given) for item in passes if item.is_used}
    loaders, fed = evaluation_loaders(evidence, passes), fed_by(evidence, passes)
    idle = [
        item
        for item in passes
        if not item.is_used and (item.facts.has_graph or not item.facts.is_grad_enabled)
    ]
    for place, group in by_place(idle).items():
        found = [item for item in group if item.facts.is_training and item.num_on]
        if not found or is_thrown_away(evidence, found[0].moment) or _is_on_purpose(evidence, found):
            continue
        from_loader = [item for item in found if fed.get(item.facts.number) in loaders]
        if from_loader and not is_repeated(from_loader):
            found = from_loader
        elif not (
            has_evaluation_run(found)
            or _is_fixed(
                evidence, found, trained_on={given for model, given in trained_on if model == place[2]}
            )
            or _is_last(evidence, found)
        ):
            continue
        yield _finding(evidence, found)


def _finding(evidence: Evidence, found: list[Pass]) -> Finding:
    first = found[0]
    assert first.layers is not None
    name = first.layers.class_name
    off = [
        moment
        for moment in evidence.of(ModeSet)
        if moment.facts.class_name == name
        and not moment.facts.is_training
        and moment.at_s < first.moment.at_s
    ]
    said = f"last switched to eval mode at line {off[-1].line}" if off else "never switched to eval mode"
    text = (
        f"{layers_text(first.layers, first.layers.names_on)}; {len(found)} passes that no "
        f"backward pass reached; {name} was {said}"
    )
    asked = [item for item in _switches_on(evidence, first) if item.facts.class_name == name]
    if asked and (not off or asked[-1].at_s > off[-1].at_s):
        return Finding.at(
            asked[-1],
            f"{name} is switched to train mode before it is evaluated: eval() is meant",
            evidence=f"{text}; first evaluated at line {first.moment.line}",
            count=1,
        )
    moment = called_from(evidence, first.moment)
    line = evaluation_line(evidence, moment)
    where = "" if line == first.moment.line else f"; first evaluated at line {first.moment.line}"
    return Finding.at(
        moment,
        f"{name} is evaluated in train mode: eval() is missing",
        line=line,
        evidence=text + where,
        count=1,
        details={"called": moment.line},
    )


def _switches_on(evidence: Evidence, first: Pass) -> list[Moment[ModeSet]]:
    """Return calls of `train()` after the last step, in the function that makes this pass."""
    return [
        moment
        for moment in evidence.of(ModeSet)
        if moment.facts.is_training
        and moment.at_s < first.moment.at_s
        and moment.step == first.moment.step > 0
        and moment.function == first.moment.function
    ]


def _is_on_purpose(evidence: Evidence, found: list[Pass]) -> bool:
    """Whether only dropout is on, and train mode was asked for after the last step: Monte-Carlo dropout.

    It draws several outputs for one input.
    """
    first = found[0]
    assert first.layers is not None
    # A whole graph is scored two or three times, with the masks of its parts.
    if any(is_repeated(run) for run in runs_of(found) if len(run) >= _MIN_SAMPLES):
        return True
    is_asked = bool(_switches_on(evidence, first)) and not first.layers.num_norms_on
    return is_asked and (_draws_again(evidence, first) or not all(_is_once(run) for run in runs_of(found)))


def _draws_again(evidence: Evidence, item: Pass) -> bool:
    """Whether the innermost loop around a pass does not use its variable, as in `for _ in range(8)`."""
    source = evidence.source(item.moment.file)
    if source is None or item.moment.line is None:
        return False
    loops = [node for node in walk(source.tree) if isinstance(node, ast.For | _COMPREHENSIONS)]
    around = [node for node in loops if covers(node, item.moment.line)]
    if not around or trains(around[-1]):
        return False
    inner = around[-1]
    targets = [inner.target] if isinstance(inner, ast.For) else [part.target for part in inner.generators]
    counted = {name.id for target in targets for name in _names(target)}
    return not counted & {name.id for name in _names(inner) if isinstance(name.ctx, ast.Load)}


def _names(node: ast.AST) -> list[ast.Name]:
    return [item for item in walk(node) if isinstance(item, ast.Name)]


def _is_once(run: list[Pass]) -> bool:
    """Whether several inputs are passed through once each."""
    known = [item.facts.given for item in run]
    return len(known) > 1 and min(known) >= 0 and len(set(known)) == len(known)


def _num_optimizers(evidence: Evidence) -> int:
    return len({moment.facts.optimizer for moment in evidence.of(OptimizerStep)})


def _is_fixed(evidence: Evidence, found: list[Pass], *, trained_on: set[int]) -> bool:
    """Whether one tensor that is not trained on comes again and again: a validation set without a loader."""
    steps: dict[int, set[int]] = {}
    for item in found:
        if item.facts.given >= 0 and item.facts.given not in trained_on:
            steps.setdefault(item.facts.given, set()).add(item.moment.step)
    return _num_optimizers(evidence) == 1 and any(len(seen) >= _MIN_STEPS for seen in steps.values())


def _is_last(evidence: Evidence, found: list[Pass]) -> bool:
    """Whether training was over by then."""
    total = evidence.first.num_steps
    is_over = evidence.first.ended == "finished" and found[-1].moment.step == total >= _MIN_STEPS
    return is_over and _num_optimizers(evidence) == 1


def make_edits(source: Source, finding: Finding) -> list[Edit]:
    """Switch to eval mode before all that evaluates, and back after it, if the script never does."""
    line = finding.details.get("called")
    models = _trained(source)
    calls = [node for node in walk(source.tree) if isinstance(node, ast.Call) and node.lineno == line]
    called = [node for node in calls if text_of(source, node.func) in models]
    if len(called) != 1:
        return []
    name = text_of(source, called[0].func)
    evaluation = _evaluation_around(source, called[0])
    before = insert_before(source, evaluation, f"{name}.eval()")
    if not before or f"{name}.train()" in source.text:
        return before
    return [*before, *insert_after(source, evaluation, f"{name}.train()")]


def _evaluation_around(source: Source, call: ast.Call) -> ast.stmt | None:
    """Return the outermost block around a pass, in its function, that does not train; else its statement."""
    statement = statement_of(source, call)
    above = [] if statement is None else parents_of(source.tree, statement)
    for node in reversed(above):
        if not isinstance(node, ast.For | ast.While | ast.With) or trains(node):
            break
        statement = node
    return statement


def _trained(source: Source) -> set[str]:
    """Return what `parameters()` is called on: the script's models, by the names that it gives them."""
    return {
        text_of(source, node.value)
        for node in walk(source.tree)
        if isinstance(node, ast.Attribute) and node.attr in ("parameters", "train", "eval", "state_dict")
    }
