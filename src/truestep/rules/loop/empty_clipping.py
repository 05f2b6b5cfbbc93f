"""Clipping gets an exhausted iterator: no gradient is clipped.

## What it finds
`clip_grad_norm_` or `clip_grad_value_` called with a generator, a `filter` or a `map` that yields no
parameter, because the optimizer or an earlier call consumed it.

## Why it matters
Nothing is clipped, and torch raises no error.
"""

import ast
from collections.abc import Iterator

from truestep.rules import Edit, Evidence, Finding, Meta, Source
from truestep.rules.kit.edits import call_at, replace_node, text_of
from truestep.rules.kit.syntax import walk
from truestep.watch.evidence.facts.optimizing import ClippingCalled
from truestep.watch.evidence.facts.passes import BackwardPass

RULE = Meta(
    code="LOOP08",
    severity="error",
    needs=(ClippingCalled, BackwardPass),
    is_lasting=True,
    fix="Pass model.parameters() at each call, or keep the parameters in a list.",
)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find clipping of nothing."""
    clips = evidence.of(ClippingCalled)
    # Where layers are clipped one by one, those without parameters have none to give.
    full = {(item.file, item.line, item.step) for item in clips if not item.facts.is_exhausted}
    for moment in clips:
        if moment.facts.is_exhausted and (moment.file, moment.line, moment.step) not in full:
            yield Finding.at(
                moment,
                "no gradient is clipped: the iterator of parameters is exhausted",
                evidence="the call got an iterator that yielded 0 parameters",
            )


def make_edits(source: Source, finding: Finding) -> list[Edit]:
    """Keep the parameters in a list where the iterator is made."""
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        call = call_at(source, finding.line, name=name)
        given = text_of(source, call.args[0]) if call is not None and call.args else ""
        for node in [item for item in walk(source.tree) if isinstance(item, ast.Assign)]:
            is_iterator = isinstance(node.value, ast.Call | ast.GeneratorExp)
            if is_iterator and given in {text_of(source, target) for target in node.targets}:
                made = text_of(source, node.value)
                inner = made[1:-1] if isinstance(node.value, ast.GeneratorExp) else made
                return replace_node(source, node.value, text=f"list({inner})")
    return []
