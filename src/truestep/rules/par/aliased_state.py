"""A stored `state_dict()` is the live weights: "best" equals last.

## What it finds
A `state_dict()` that is stored while training continues, and is loaded or saved later. Its tensors share
memory with the model, so they changed with it.

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
from truestep.watch.evidence.facts.passes import ModelUsed
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
    return evidence.has(ModelRefilled) or evidence.has(StateSaved)


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
            yield Finding.at(
                taken.place,
                "this state_dict() is stored without a copy: it changes with the model",
                step=taken.step + 1,
                evidence=f"{what} at line {moment.line}, {passed} steps later; "
                + ("changed with the model since" if moment.facts.num_written else "nothing is restored")
                + ": its tensors share the model's memory",
            )
    yield from _check_views(evidence)


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
                yield Finding.at(
                    taken.place,
                    "this state_dict() is stored without a copy: it changes with the model",
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


def make_edits(source: Source, finding: Finding) -> list[Edit]:
    """Keep a deep copy of the state."""
    call = call_at(source, finding.line, name="state_dict")
    return copy_node(source, call) if call is not None else []
