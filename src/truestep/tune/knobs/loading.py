"""Knobs of data loading: workers, what they keep ready, how long they live, pinned memory."""

from collections.abc import Mapping
from typing import Any

from truestep.tune.knob import Choice, Knob, ScriptFacts, Skip
from truestep.tune.knobs._arguments import edit_loaders, rewrite
from truestep.tune.knobs._worth import num_workers, too_small, torch_loaders, without_gpu
from truestep.watch.script.tape import Tape

_TRIED = (4, 8)
_START_S = 0.5
"""About what workers take to start, forked; a bound, not a measurement."""
_LONG_S = _START_S / 0.02


def propose_workers(facts: ScriptFacts, chosen: Mapping[str, Any]) -> list[Choice] | Skip:
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
    return [Choice(value=number, words=_workers_words(number)) for number in sorted(numbers)]


def _workers_words(number: int) -> str:
    return {0: "no workers", 1: "1 worker"}.get(number, f"{number} workers")


def propose_prefetch(facts: ScriptFacts, chosen: Mapping[str, Any]) -> list[Choice] | Skip:
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


def prefetch(value: int, tape: Tape) -> None:
    """Build each DataLoader that has workers with this number."""
    edit_loaders(tape, lambda arguments: arguments.update(prefetch_factor=value))


def propose_persistent(facts: ScriptFacts, chosen: Mapping[str, Any]) -> list[Choice] | Skip:
    """Propose it where there are workers and epochs are short."""
    if num_workers(facts, chosen) == 0:
        return Skip(reason="the loader has no workers.")
    loaders = torch_loaders(facts)
    if not loaders:
        return Skip(reason="the loader is not torch's DataLoader and manages its workers differently.")
    if all(item["persistent"] for item in loaders):
        return Skip(reason="the script already keeps its workers.")
    lengths = [item["length"] for item in loaders if not item["persistent"]]
    if None in lengths:
        return Skip(reason="the length of the data is unknown, so workers start once.")
    epoch_s = min(lengths) * facts.step_s
    if epoch_s > _LONG_S:
        return Skip(
            reason=f"an epoch takes about {epoch_s:.0f} s, and workers start in half a second: "
            "keeping them gains less than 2 %."
        )
    return [Choice(value=True, words="kept between epochs")]


def persistent(value: bool, tape: Tape) -> None:
    """Build each DataLoader that has workers so."""
    edit_loaders(tape, lambda arguments: arguments.update(persistent_workers=value))


def propose_pin_memory(facts: ScriptFacts, chosen: Mapping[str, Any]) -> list[Choice] | Skip:  # noqa: ARG001
    """Propose it on a GPU, where copies to it take time."""
    skip = without_gpu(facts, "pinned memory speeds up copies to a GPU")
    if skip is not None:
        return skip
    loaders = torch_loaders(facts)
    if not loaders:
        return Skip(reason="the script does not create a DataLoader of torch.")
    if all(item["pin_memory"] for item in loaders):
        return Skip(reason="the script already pins its batches.")
    skip = too_small(facts, "to_device", "data", what="copying data to the GPU", best="a copy without cost")
    return skip or [Choice(value=True, words="pinned")]


def pin_memory(value: bool, tape: Tape) -> None:  # noqa: ARG001
    """Build each DataLoader so."""
    loader = "torch.utils.data.DataLoader.__init__"
    rewrite(loader, change=lambda arguments: arguments.update(pin_memory=value))


KNOBS = (
    Knob(
        name="workers",
        priority=10,
        about="Prepares batches in other processes while the model computes. Pays if it waits for data.",
        propose=propose_workers,
        lines=("loader = DataLoader(..., num_workers={value})  # truestep.Loader(..., workers={value})",),
        # What a dataset draws (augmentation) comes from the workers' generators then.
        changes_bits=True,
        setting=lambda value: ("workers", value),
        plan=lambda value: {"workers": value},
    ),
    Knob(
        name="prefetch",
        priority=90,
        about="Lets each worker keep more batches ready. Pays if the time for a batch varies; costs memory.",
        propose=propose_prefetch,
        lines=("loader = DataLoader(..., prefetch_factor={value})",),
        changes_bits=False,
        after=("workers",),
        apply=prefetch,
    ),
    Knob(
        name="persistent",
        priority=100,
        about="Keeps loader workers from epoch to epoch. Pays if epochs are short.",
        propose=propose_persistent,
        lines=("loader = DataLoader(..., persistent_workers={value})",),
        # torch draws a seed for workers whenever they start: all later draws are others.
        changes_bits=True,
        after=("workers",),
        apply=persistent,
    ),
    Knob(
        name="pin_memory",
        priority=110,
        about="Puts batches into memory that a GPU can read directly. Pays if copies to the GPU take time.",
        propose=propose_pin_memory,
        lines=(
            "loader = DataLoader(..., pin_memory={value})",
            "x = x.to(device, non_blocking=True)  # for each tensor of a batch",
        ),
        changes_bits=False,
        apply=pin_memory,
    ),
)
