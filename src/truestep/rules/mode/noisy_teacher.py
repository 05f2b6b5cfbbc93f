"""A fixed teacher computes its targets in train mode.

## What it finds
A model that makes targets without gradients, step by step beside a model that is trained, whose own weights
stay the same meanwhile, and whose dropout or BatchNorm is in train mode. A teacher that follows the trained
model (an average, a target network), and one that is asked several times for each batch, are not reported.

## Why it matters
Dropout makes the targets random. BatchNorm normalizes them by the batch at hand, and moves its running
statistics with every step. The student learns from a teacher that is worse than the one that was measured.

## How to fix
Call `teacher.eval()` once before the training loop. `train()` of a module that holds both switches the
teacher back, so call it after that.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.mode._passes import Pass, by_place, is_thrown_away, layers_text, owners, read_passes
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.passes import PassExamined
from truestep.watch.evidence.facts.structure import ParametersListed

RULE = Meta(
    code="MODE08",
    severity="warning",
    needs=(PassExamined, OptimizerStep),
    fix="Call .eval() on the teacher before the loop that trains the student.",
    is_preview=True,
)
_LEAST_STEPS = 3


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find models that are fixed, make targets in train mode, and have layers for which it matters."""
    passes = read_passes(evidence)
    trained = {item.moment.step: item.facts.model for item in passes if item.is_used}
    idle = [item for item in passes if not item.is_used and not item.facts.is_grad_enabled]
    for group in by_place(idle).values():
        first, steps = group[0], {item.moment.step for item in group}
        beside = [step for step in steps if trained.get(step, first.facts.model) != first.facts.model]
        is_whole = len(beside) == len(steps) == len(group) >= _LEAST_STEPS
        is_on = all(item.facts.is_training and item.num_on for item in group)
        if not (is_whole and is_on and _is_fixed(evidence, group)) or is_thrown_away(evidence, first.moment):
            continue
        assert first.layers is not None
        yield Finding.at(
            first.moment,
            f"{first.layers.class_name} makes targets in train mode: eval() is missing",
            count=len(group),
            evidence=f"{layers_text(first.layers, first.layers.names_on)}; {len(group)} passes without "
            "gradients, each beside a trained pass of another model, while its own weights stayed the same",
        )


def _is_fixed(evidence: Evidence, group: list[Pass]) -> bool:
    """Whether nothing moves the model's weights from the first of its passes to the last."""
    model = group[0].facts.model
    own = owners(evidence).get(model, {})
    first, last = group[0].moment.step, group[-1].moment.step
    if own:
        steps = [moment.step for moment in evidence.of(OptimizerStep) if moment.facts.optimizer in own]
        return not any(first <= step <= last for step in steps)
    weights = [
        item
        for moment in evidence.of(ParametersListed)[-1:]
        for item in moment.facts.parameters
        if item.model == model
    ]
    return bool(weights) and not any(item.is_changed or item.is_copy for item in weights)
