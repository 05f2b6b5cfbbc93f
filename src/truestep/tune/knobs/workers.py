"""Loader workers: processes that make batches while the model computes."""

from collections.abc import Mapping
from typing import Any

from truestep.tune.knob import Choice, Facts, Knob, Skip
from truestep.tune.knobs._worth import num_workers, too_small

_MAX_TRIED = 8
"""Beyond this only the number of cores is tried too."""


def propose(facts: Facts, chosen: Mapping[str, Any]) -> list[Choice] | Skip:
    """Propose each number up to that of the cores, and none where the script has some."""
    if not facts.loaders and not facts.uses_run:
        return Skip(reason="no DataLoader was seen: the script makes its batches itself.")
    now = num_workers(facts, chosen)
    if now == 0:
        skip = too_small(facts, "data", what="waiting for data", best="a free loader")
        if skip is not None:
            return skip
    numbers = {0, *range(1, min(facts.cores, _MAX_TRIED) + 1), facts.cores} - {now}
    if facts.advised_workers is not None:  # more than cores, where a sample is waited for
        numbers |= {facts.advised_workers} - {now}
    return [Choice(value=number, words=_words(number)) for number in sorted(numbers)]


def _words(number: int) -> str:
    return {0: "no workers", 1: "1 worker"}.get(number, f"{number} workers")


def lines(value: int) -> list[str]:
    """Return the argument to write."""
    return [f"loader = DataLoader(..., num_workers={value})  # truestep.Loader(..., workers={value})"]


KNOB = Knob(
    name="workers",
    about="Makes batches in other processes while the model computes. Pays where training waits for data.",
    propose=propose,
    lines=lines,
    # What a dataset draws (augmentation) comes from the workers' generators, then from others than without.
    changes_bits=True,
    setting=lambda value: ("workers", value),
    plan=lambda value: {"workers": value},
)
