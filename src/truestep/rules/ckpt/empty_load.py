"""`load_state_dict(strict=False)` loads almost nothing.

## What it finds
A call of `load_state_dict` that matches almost none of the model's tensors. Typical causes: the names have
another prefix, a filter removed every key, or the state that is loaded is the model's own.

## Why it matters
With `strict=False`, torch skips names that do not match and reports no error. Training starts from random
weights, and you credit the result to pretraining.

## How to fix
Make the names match (`key.removeprefix("module.")`) and load with `strict=True`. If you need `strict=False`,
check the missing and unexpected keys that `load_state_dict` returns.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.par.aliased_state import is_updated
from truestep.watch import Moment
from truestep.watch.evidence.facts.structure import CheckpointLoaded, ModelRefilled

RULE = Meta(
    code="CKPT01",
    severity="error",
    needs=(ModelRefilled,),
    fix="Rename the keys to match the model, and check the missing and unexpected keys that it returns.",
)
_FEW = 0.1
_ALL = 0.99


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
        elif _is_own(facts) and evidence.has(CheckpointLoaded) and is_updated(evidence, moment):
            yield Finding.at(
                moment,
                f"nothing is loaded into {facts.class_name}: the state is its own",
                evidence=f"all {facts.num_tensors} tensors share the model's memory; "
                "no name in the file matches one of the model's",
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


def _is_own(facts: ModelRefilled) -> bool:
    is_all = facts.num_tensors > 0 and facts.num_own >= _ALL * facts.num_tensors
    return is_all and facts.taken is not None and not facts.num_written


def _some(names: list[str], num: int) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {num - 3} more" if num > 3 else shown or "none"
