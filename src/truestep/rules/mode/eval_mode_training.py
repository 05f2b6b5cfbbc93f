"""A model is trained in eval mode.

## What it finds
Optimizer steps that use forward passes of a model that is in eval mode as a whole, although it has dropout or
BatchNorm. The script did not call `train()` after a validation, or after `from_pretrained`, which returns
models in eval mode. Single layers in eval mode within a model in train mode, backbones that are not trained,
and models of which only a part was switched to train mode, are intentional and not reported.

## Why it matters
Dropout does nothing, so the model overfits. BatchNorm uses running statistics that no longer follow the
weights. From the first validation on, you train a different model than you think.
"""

from collections.abc import Iterator
from typing import Any

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.mode._passes import Pass, layers_text, loop_around, owners, read_passes
from truestep.watch import Moment
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.passes import ForwardPass, ModelUsed, ModeSet, PassExamined

RULE = Meta(
    code="MODE03",
    severity="warning",
    is_observed=lambda evidence: any(item.num_layers and item.is_used for item in read_passes(evidence)),
    needs=(PassExamined, OptimizerStep),
    fix="Call .train() on this module at the beginning of every training epoch.",
)
_MOST = 0.5


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find training passes in eval mode that lead to steps."""
    passes = read_passes(evidence)
    for model, optimizers in owners(evidence).items():
        own = [item for item in passes if item.facts.model == model]
        candidates = [
            item
            for item in own
            if item.is_used and not item.facts.is_training and item.num_layers and not item.num_on
        ]
        for item in candidates:
            num_optimized, total = max(optimizers.values())
            if num_optimized and _leads_to_step(evidence, item, set(optimizers)):
                if _is_part_on(evidence, item):
                    break
                why = _why(evidence, item, passes, is_whole=num_optimized >= _MOST * total)
                if why is not None:
                    yield _finding(evidence, item, passes, why)
                break


def _is_part_on(evidence: Evidence, item: Pass) -> bool:
    """Whether `train()` of a part, as of a head, came after the last `eval()` of the whole model."""
    assert item.layers is not None
    whole = {moment.facts.class_name for moment in evidence.of(ModelUsed)}
    is_on = False
    for moment in evidence.of(ModeSet):
        if moment.at_s < item.moment.at_s:
            if moment.facts.class_name == item.layers.class_name:
                is_on = False
            elif moment.facts.is_training and moment.facts.class_name not in whole:
                is_on = True
    return is_on


def _finding(evidence: Evidence, item: Pass, passes: list[Pass], why: str) -> Finding:
    assert item.layers is not None
    text = f"{why}; {layers_text(item.layers, item.layers.names)}; trained at line {item.moment.line}"
    name = item.layers.class_name
    asked = _asked_here(evidence, item, passes)
    if asked is not None:
        return Finding.at(
            asked, f"{name} is switched to eval mode before it is trained: train() is meant", evidence=text
        )
    source = evidence.source(item.moment.file)
    loop = None if source is None else loop_around(source, item.moment.line)
    return Finding.at(
        item.moment,
        f"{name} is trained in eval mode: train() is missing",
        line=item.moment.line if loop is None else loop.lineno,
        evidence=text,
    )


def _asked_here(evidence: Evidence, item: Pass, passes: list[Pass]) -> Moment[ModeSet] | None:
    """Return the `eval()` that stands where `train()` belongs.

    It comes right before training, in the same function or after an evaluation in eval mode.
    """
    assert item.layers is not None
    asked = [
        moment
        for moment in evidence.of(ModeSet)
        if moment.at_s < item.moment.at_s and moment.facts.class_name == item.layers.class_name
    ]
    own = [other for other in passes if other.facts.model == item.facts.model]
    if not asked or asked[-1].facts.is_training or _between(own, asked[-1], item.moment):
        return None
    is_near = asked[-1].function == item.moment.function
    is_again = len(asked) > 1 and not asked[-2].facts.is_training and _between(own, asked[-2], asked[-1])
    return asked[-1] if is_near or is_again else None


def _between(passes: list[Pass], first: Moment[Any], last: Moment[Any]) -> bool:
    """Whether a pass was made between two moments."""
    return any(first.at_s < other.moment.at_s < last.at_s for other in passes)


def _leads_to_step(evidence: Evidence, item: Pass, optimizers: set[int]) -> bool:
    """Whether a step follows, and the model was not passed in train mode as well since the step before."""
    steps = [moment for moment in evidence.of(OptimizerStep) if moment.facts.optimizer in optimizers]
    after = next((moment for moment in steps if moment.at_s + moment.took_s > item.moment.at_s), None)
    if after is None:
        return False
    before = max((moment.at_s for moment in steps if moment.at_s < after.at_s), default=0.0)
    return not any(
        moment.facts.model == item.facts.model and moment.facts.is_training and moment.facts.is_grad_enabled
        for moment in evidence.of(ForwardPass)
        if before <= moment.at_s <= after.at_s + after.took_s
    )


def _why(evidence: Evidence, item: Pass, passes: list[Pass], *, is_whole: bool) -> str | None:
    """Say how it came to be in eval mode; None if it may be on purpose."""
    at_s = item.moment.at_s
    before = [other for other in passes if other.moment.at_s < at_s]
    earlier = [other for other in before if other.facts.model == item.facts.model]
    trained = [other for other in earlier if other.facts.is_training and other.is_used]
    since_s = trained[-1].moment.at_s if trained else 0.0
    off = [
        moment
        for moment in evidence.of(ModeSet)
        if not moment.facts.is_training and since_s <= moment.at_s <= at_s
    ]
    evaluated = any(
        not other.facts.is_training and not other.is_used and other.moment.at_s >= since_s
        for other in earlier
    )
    evaluated = evaluated or any(_is_part_evaluated(moment, item, before) for moment in off)
    assert item.layers is not None
    where = f"eval() at line {off[-1].line} was not followed by train()" if off else ""
    if item.layers.is_pretrained and all(_is_loading(evidence, moment) for moment in off):
        if is_whole and not trained:
            return "from_pretrained returned it in eval mode and train() was never called"
        return None
    if trained:
        return f"trained in train mode before; {where}" if off and evaluated else None
    if off and is_whole and (evaluated or item.layers.num_dropouts):
        return where
    return None


def _is_part_evaluated(off: Moment[ModeSet], item: Pass, before: list[Pass]) -> bool:
    """Whether this `eval()` of the model was for a pass of another module, as of a decoder that samples."""
    assert item.layers is not None
    return off.facts.class_name == item.layers.class_name and any(
        not other.facts.is_training
        and not other.is_used
        and not other.facts.is_grad_enabled
        and other.moment.step == off.step
        and other.moment.at_s > off.at_s
        for other in before
    )


def _is_loading(evidence: Evidence, moment: Moment[ModeSet]) -> bool:
    source = evidence.source(moment.file)
    return source is not None and "from_pretrained" in source.line(moment.line)
