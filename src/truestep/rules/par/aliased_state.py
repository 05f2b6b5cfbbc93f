"""A stored `state_dict()` is the live weights: "best" equals last.

## What it finds
A `state_dict()` that is stored while training continues, and is loaded or saved later. Its tensors share
memory with the model, so they changed with it. Also `best = model`.

## Why it matters
`state_dict()` copies nothing. The "best weights" that you restore at the end are the last ones, early
stopping restores nothing, and the reported number belongs to another model.

## How to fix
Copy what you want to keep: `copy.deepcopy(model.state_dict())`, `{k: v.clone() for k, v in ...}`, or save it
to a file.
"""

import ast
from collections import Counter
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta, Source
from truestep.rules.kit.edits import Edit, call_at, copy_node
from truestep.rules.kit.syntax import walk
from truestep.rules.kit.where import assignments, calls, covers, is_called_at, name_of
from truestep.watch import Moment
from truestep.watch.evidence.facts.passes import ForwardPass, ModelUsed
from truestep.watch.evidence.facts.structure import ModelRefilled, StateSaved, TakenState

RULE = Meta(
    code="PAR12",
    severity="error",
    needs=(ModelUsed,),
    fix="Store a copy: copy.deepcopy(model.state_dict()).",
)
_MOST = 0.5


def is_observed(evidence: Evidence) -> bool:
    """Whether a state was put back or saved."""
    return evidence.has(ModelRefilled) or evidence.has(StateSaved) or bool(_kept_models(evidence))


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find states that have changed with the model."""
    used = [(moment, moment.facts.taken) for moment in evidence.of(ModelRefilled, StateSaved)]
    uses = [(moment, taken) for moment, taken in used if taken is not None]
    num_uses = Counter(taken.number for _, taken in uses)
    for moment, taken in uses:
        is_stale = _is_stale(moment, taken, num_uses[taken.number])
        if is_stale and not is_updated(evidence, moment):
            file, line, _ = taken.place
            if not is_called_at(evidence.source(file), line, name="state_dict"):
                continue  # a framework did it
            what = "loaded" if isinstance(moment.facts, ModelRefilled) else "saved"
            passed = moment.step - taken.step
            yield Finding(
                message="this state_dict() is stored without a copy: it changes with the model",
                file=file or None,
                line=line or None,
                step=taken.step + 1,
                evidence=f"{what} at line {moment.line}, {passed} steps later; "
                + ("changed with the model since" if moment.facts.num_written else "nothing is restored")
                + ": its tensors share the model's memory",
            )
    yield from _check_views(evidence)
    yield from _kept_models(evidence)


def _check_views(evidence: Evidence) -> Iterator[Finding]:
    """Find states of other tensors with the same memory, as `{k: v.detach() for k, v in ...}` has them."""
    for moment in evidence.of(ModelRefilled):
        if not _is_self(moment.facts) or is_updated(evidence, moment):
            continue
        names = _given_names(evidence, moment)
        for taken in moment.facts.taken_before:
            file, line, _ = taken.place
            source = evidence.source(file)
            kept = [item for name in names if source for item, _ in assignments(source.tree, name)]
            if any(covers(item, line) for item in kept) and is_called_at(source, line, name="state_dict"):
                yield Finding(
                    message="this state_dict() is stored without a copy: it changes with the model",
                    file=file,
                    line=line,
                    step=taken.step + 1,
                    evidence=f"loaded at line {moment.line}; nothing is restored: its tensors share the "
                    "model's memory",
                )


def _given_names(evidence: Evidence, moment: Moment[ModelRefilled | StateSaved]) -> set[str]:
    """Return the names of the state that is loaded there."""
    source = evidence.source(moment.file)
    found = calls(source.tree, "load_state_dict") if source is not None else ()
    names = {name_of(call.args[0]) for call in found if call.args and covers(call, moment.line)}
    return {name for name in names if name is not None}


def _is_self(facts: ModelRefilled) -> bool:
    """Whether a model is filled with its own memory."""
    return facts.num_own > _MOST * max(1, facts.num_tensors)


def _is_stale(moment: Moment[ModelRefilled | StateSaved], taken: TakenState, num_uses: int) -> bool:
    """Whether what is used is not what was taken; one state used again and again may be live on purpose."""
    facts = moment.facts
    if isinstance(facts, ModelRefilled) and _is_self(facts):
        return taken.place.line != moment.line or facts.num_written > 0
    return facts.num_written > 0 and num_uses == 1


def is_updated(evidence: Evidence, moment: Moment[ModelRefilled | StateSaved]) -> bool:
    """Whether the state was taken to be filled with another one's values first, by `update`."""
    source = evidence.source(moment.file)
    if source is None or not isinstance(moment.facts, ModelRefilled) or moment.facts.num_written:
        return False
    changed = {
        name_of(call.func.value)
        for call in calls(source.tree, "update")
        if isinstance(call.func, ast.Attribute)
    }
    changed |= {name_of(node.value) for node in walk(source.tree) if _is_item_set(node)}  # type: ignore[attr-defined]
    return not _given_names(evidence, moment).isdisjoint(changed)


def _is_item_set(node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)


def _kept_models(evidence: Evidence) -> list[Finding]:
    """Find `best = model` in a loop: the name of the best is that of the model itself."""
    called = {(moment.file, moment.line) for moment in evidence.of(ForwardPass)}
    found = []
    for source in evidence.sources:
        for loop in walk(source.tree):
            if isinstance(loop, ast.For | ast.While):
                for branch in walk(loop):
                    if isinstance(branch, ast.If):
                        found += _kept_in(source, branch, called, made=_made_in(loop))
    return list({(finding.file, finding.line): finding for finding in found}.values())


def _made_in(loop: ast.For | ast.While) -> set[str | None]:
    """Return the names that each turn of a loop gives something new, as a search gives each width a model."""
    made = _stored_in(loop.target) if isinstance(loop, ast.For) else set()
    for node in walk(loop):
        if isinstance(node, ast.Assign):
            read = {name_of(item) for item in walk(node.value)}
            made |= _stored_in(*node.targets) - read  # `model = model.to(device)` is no other model
    return made


def _stored_in(*targets: ast.expr) -> set[str | None]:
    nodes = (node for target in targets for node in walk(target))
    return {name_of(node) for node in nodes if isinstance(getattr(node, "ctx", None), ast.Store)}


def _kept_in(
    source: Source, branch: ast.If, called: set[tuple[str | None, int | None]], *, made: set[str | None]
) -> list[Finding]:
    if any(isinstance(node, ast.Break | ast.Return) for node in walk(branch)):
        return []
    found = []
    for statement in branch.body:
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            continue
        kept, model = name_of(statement.targets[0]), name_of(statement.value)
        if kept is None or model is None or "best" not in kept.lower() or "best" in model.lower():
            continue
        if model in made:
            continue
        is_model = any(
            (source.path, call.lineno) in called and name_of(call.func) == model
            for call in walk(source.tree)
            if isinstance(call, ast.Call)
        )
        is_used = any(
            isinstance(node, ast.Name | ast.Attribute)
            and isinstance(node.ctx, ast.Load)
            and name_of(node) == kept
            for node in walk(source.tree)
        )
        if is_model and is_used:
            found.append(
                Finding(
                    message=f"{kept} is {model}, not a copy: it keeps changing",
                    file=source.path,
                    line=statement.lineno,
                    step=1,
                    evidence=f"{model} is assigned without a copy, in a loop that continues to train it",
                )
            )
    return found


def make_edits(source: Source, finding: Finding) -> list[Edit]:
    """Keep a deep copy of the state."""
    call = call_at(source, finding.line, name="state_dict")
    return copy_node(source, call) if call is not None else []
