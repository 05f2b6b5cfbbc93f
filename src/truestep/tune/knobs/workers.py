"""Loader workers: processes that make batches while the model computes."""

from collections.abc import Mapping
from typing import Any

from truestep.tune.knob import Choice, Knob, ScriptFacts, Skip
from truestep.tune.knobs._worth import num_workers, too_small


def propose(facts: ScriptFacts, chosen: Mapping[str, Any]) -> list[Choice] | Skip:
    """Propose what should be enough by the profile, and the number of cores; none if the script has some."""
    if not facts.loaders and not facts.uses_run:
        return Skip(reason="the script does not use a DataLoader.")
    now = num_workers(facts, chosen)
    if now == 0:
        skip = too_small(facts, "data", what="waiting for data", best="a loader without cost")
        if skip is not None:
            return skip
    few = {number for number in (1, 2, 4) if number <= facts.cores}
    # More than cores where a sample is waited for; without a prediction training waits little, if at all.
    wanted = few if facts.advised_workers is None else {facts.advised_workers}
    numbers = {0, facts.cores, *wanted} - {now}
    return [Choice(value=number, words=_words(number)) for number in sorted(numbers)]


def _words(number: int) -> str:
    return {0: "no workers", 1: "1 worker"}.get(number, f"{number} workers")


KNOB = Knob(
    priority=10,
    about="Prepares batches in other processes while the model computes. Pays if training waits for data.",
    propose=propose,
    lines=("loader = DataLoader(..., num_workers={value})  # truestep.Loader(..., workers={value})",),
    # What a dataset draws (augmentation) comes from the workers' generators, then from others than without.
    changes_bits=True,
    setting=lambda value: ("workers", value),
    plan=lambda value: {"workers": value},
)
