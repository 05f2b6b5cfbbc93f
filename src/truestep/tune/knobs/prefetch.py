"""Prefetch: how many batches each loader worker keeps ready."""

from collections.abc import Mapping
from typing import Any

from truestep.tune.knob import Choice, Knob, ScriptFacts, Skip
from truestep.tune.knobs._arguments import edit_loaders
from truestep.tune.knobs._worth import num_workers, too_small, torch_loaders
from truestep.watch.script.tape import Tape

_TRIED = (4, 8)


def propose(facts: ScriptFacts, chosen: Mapping[str, Any]) -> list[Choice] | Skip:
    """Propose more than torch's own 2, where there are workers and training still waits for them."""
    if num_workers(facts, chosen) == 0:
        return Skip(reason="only workers prefetch, and the loader has none.")
    loaders = torch_loaders(facts)
    if not loaders:
        return Skip(reason="the loader is not torch's DataLoader and prefetches differently.")
    if "workers" not in chosen:
        skip = too_small(facts, "data", what="waiting for data", best="a loader without cost")
        if skip is not None:
            return skip
    now = max(item["prefetch"] or 2 for item in loaders)
    choices = [Choice(value=number, words=f"{number} batches each") for number in _TRIED if number > now]
    return choices or Skip(reason=f"each worker already keeps {now} batches ready.")


def apply(value: int, tape: Tape) -> None:
    """Build each DataLoader that has workers with this number."""
    edit_loaders(tape, lambda arguments: arguments.update(prefetch_factor=value))


KNOB = Knob(
    priority=90,
    about="Lets each worker keep more batches ready. Pays if the time for a batch varies; costs memory.",
    propose=propose,
    lines=("loader = DataLoader(..., prefetch_factor={value})",),
    changes_bits=False,
    after=("workers",),
)
