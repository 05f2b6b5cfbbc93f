"""Persistent workers: kept from one epoch to the next instead of started anew."""

from collections.abc import Mapping
from typing import Any

from truestep.tune.knob import Choice, Knob, ScriptFacts, Skip
from truestep.tune.knobs._arguments import edit_loaders
from truestep.tune.knobs._worth import num_workers, torch_loaders
from truestep.watch.script.tape import Tape

_START_S = 0.5
"""About what workers take to start, forked; a bound, not a measurement."""
_LONG_S = _START_S / 0.02


def propose(facts: ScriptFacts, chosen: Mapping[str, Any]) -> list[Choice] | Skip:
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


def apply(value: bool, tape: Tape) -> None:
    """Build each DataLoader that has workers so."""
    edit_loaders(tape, lambda arguments: arguments.update(persistent_workers=value))


KNOB = Knob(
    priority=100,
    about="Keeps loader workers from epoch to epoch. Pays if epochs are short.",
    propose=propose,
    lines=("loader = DataLoader(..., persistent_workers={value})",),
    # torch draws a seed for workers whenever they start: from the second epoch on all later draws are others.
    changes_bits=True,
    after=("workers",),
)
