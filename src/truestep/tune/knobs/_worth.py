"""What a knob can gain at most, from where the time goes: the reason not to try it.

Owns the bound and the sentences. The shares are measured elsewhere; where there are none, all is worth a try.
"""

from collections.abc import Mapping
from typing import Any

from truestep.tune.knob import WORTH, ScriptFacts, Skip

_MIN_SHARE = 1 - 1 / WORTH


def too_small(facts: ScriptFacts, *phases: str, what: str, best: str) -> Skip | None:
    """Return why it cannot pay, if these phases are a small share of a step; `best` would take them to 0."""
    if not facts.shares:
        return None
    share = sum(facts.shares.get(phase, 0.0) for phase in phases)
    if share >= _MIN_SHARE:
        return None
    return Skip(reason=f"{what} takes {share:.1%} of a step, so even {best} would gain less than 2 %.")


def without_gpu(facts: ScriptFacts, what: str) -> Skip | None:
    """Return why it is not tried on a CPU."""
    if facts.device == "cuda":
        return None
    return Skip(reason=f"{what}; the model is on the {facts.device.upper()}.")


def training_loaders(facts: ScriptFacts) -> list[Mapping[str, Any]]:
    """Return the loaders that training reads: the shuffled ones, or all if none is."""
    return [item for item in facts.loaders if item.get("is_training", True)] or list(facts.loaders)


def torch_loaders(facts: ScriptFacts) -> list[Mapping[str, Any]]:
    """Return those of them whose arguments can be edited: torch's own, as the script makes them."""
    loaders = training_loaders(facts)
    return [item for item in loaders if item["class"] != "StatefulDataLoader" and not item.get("is_ours")]


def num_workers(facts: ScriptFacts, chosen: Mapping[str, Any]) -> int:
    """Return how many workers training's loaders have, as the script is, or as chosen already."""
    now = max((item["workers"] for item in training_loaders(facts)), default=0)
    return int(chosen.get("workers", now))
