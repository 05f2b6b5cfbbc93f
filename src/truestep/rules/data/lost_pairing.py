"""Inputs and labels lose their pairing: an input has another label in a later epoch.

## What it finds
Training data that come again in a second epoch with the same inputs and the same labels, but paired in
another way. The rule compares digests of what the model is given and of what the loss compares with.

## Why it matters
Labels that are shuffled against their inputs are noise. The model learns how frequent each label is, and
nothing else. Usually inputs and labels are shuffled by two different permutations, or only one of them is
shuffled.

## How to fix
Draw one permutation and index both with it: `order = torch.randperm(len(x)); x, y = x[order], y[order]`.
"""

import ast
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta, Source
from truestep.rules.kit.syntax import walk
from truestep.rules.kit.where import has_run, name_of
from truestep.watch.evidence.facts.loading import PairsCompared
from truestep.watch.evidence.kinds import Place

RULE = Meta(
    code="DATA09",
    severity="error",
    needs=(PairsCompared,),
    fix="Draw one permutation and index inputs and labels with it.",
)
_LEAST_CHANGED = 0.2
_SHUFFLING = frozenset({"randperm", "permutation", "shuffle", "permuted"})


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find inputs that come with another label than before, out of the same labels."""
    for moment in evidence.of(PairsCompared):
        facts = moment.facts
        if facts.num_changed < _LEAST_CHANGED * facts.num_matched:
            continue
        # New labels, as those of a teacher, are no lost pairing: all must be there as often as before.
        if facts.num_missing > 0.5 * facts.num_rows**0.5 or facts.num_other_targets > facts.num_missing:
            continue
        yield Finding.at(
            _shuffled_at(evidence) or moment,
            "inputs and labels lose their pairing: an input has another label in the next epoch",
            step=moment.step + 1,
            evidence=f"{facts.num_changed} of {facts.num_matched} inputs that came again had another target, "
            f"expected 0; the {facts.num_rows} targets themselves were the same",
        )
        return


def _shuffled_at(evidence: Evidence) -> Place | None:
    """Return the last line that shuffles something, in a loop or a function if there is one."""
    found: list[tuple[bool, int, str]] = []
    for source in evidence.sources:
        inner = _inner_nodes(source)
        for node in walk(source.tree):
            is_shuffle = isinstance(node, ast.Call) and name_of(node.func) in _SHUFFLING
            if isinstance(node, ast.Call) and is_shuffle and has_run(evidence, source, line=node.lineno):
                found.append((id(node) in inner, node.lineno, source.path))
    _, line, path = max(found, default=(False, 0, ""))
    return Place(path, line, "") if found else None


def _inner_nodes(source: Source) -> set[int]:
    around = [node for node in walk(source.tree) if isinstance(node, ast.For | ast.While | ast.FunctionDef)]
    return {id(item) for node in around for item in walk(node)}
