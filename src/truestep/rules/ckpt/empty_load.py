"""`load_state_dict(strict=False)` loads almost nothing.

## What it finds
A call of `load_state_dict` that matches almost none of the model's tensors. Typical causes: the names have
another prefix, or a filter removed every key.

## Why it matters
With `strict=False`, torch skips names that do not match and reports no error. Training starts from random
weights, and you credit the result to pretraining.

## How to fix
Make the names match (`key.removeprefix("module.")`) and load with `strict=True`. If you need `strict=False`,
check the missing and unexpected keys that `load_state_dict` returns.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.watch import Moment
from truestep.watch.evidence.facts.structure import ModelRefilled

RULE = Meta(
    code="CKPT01",
    severity="error",
    needs=(ModelRefilled,),
    fix="Rename the keys to match the model, and check the missing and unexpected keys that it returns.",
)
_FEW = 0.1


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find loads that have loaded nothing."""
    moments = evidence.of(ModelRefilled)
    for place, moment in enumerate(moments):
        facts = moment.facts
        share = _share(facts)
        if share is not None and share <= _FEW and not _is_fixed(moments[place + 1 :], moment):
            matched = facts.num_keys - facts.num_unexpected
            yield Finding.at(
                moment,
                f"strict=False loads only {matched} of {facts.num_keys} tensors into {facts.class_name}",
                evidence=f"missing: {_some(facts.missing, facts.num_missing)}; "
                f"unexpected: {_some(facts.unexpected, facts.num_unexpected)}",
            )


def _share(facts: ModelRefilled) -> float | None:
    """Return how much of what could fit does; None if there was nothing to fit or it had to."""
    matched = facts.num_keys - facts.num_unexpected
    own = matched + facts.num_missing
    if facts.is_strict or not own:
        return None
    return matched / max(1, min(own, facts.num_keys))


def _is_fixed(later: list[Moment[ModelRefilled]], moment: Moment[ModelRefilled]) -> bool:
    """Whether the same model is loaded again, and well."""
    model = moment.facts.model
    return any(
        other.facts.model == model and other.step == moment.step
        for other in later
        if (share := _share(other.facts)) is None or share > _FEW
    )


def _some(names: list[str], num: int) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {num - 3} more" if num > 3 else shown or "none"
