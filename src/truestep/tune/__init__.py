"""Tuning: speed settings turned one by one in somebody's script, measured, and kept where they pay.

Owns what is tried, how it is measured and what is kept. Running the script is `watch`'s.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from truestep.tune.knob import Choice, Knob, ScriptFacts, Skip, all_knobs, pick
    from truestep.tune.profile.profile import Profile
    from truestep.tune.search.compare import Comparison
    from truestep.tune.search.result import Result, Trial
    from truestep.tune.search.search import TuneOptions, tune

__all__ = [
    "Choice",
    "Comparison",
    "Knob",
    "Profile",
    "Result",
    "ScriptFacts",
    "Skip",
    "Trial",
    "TuneOptions",
    "all_knobs",
    "pick",
    "tune",
]

_HOMES = {
    "TuneOptions": "search.search",
    "Choice": "knob",
    "Comparison": "search.compare",
    "ScriptFacts": "knob",
    "Knob": "knob",
    "Profile": "profile.profile",
    "Result": "search.result",
    "Skip": "knob",
    "Trial": "search.result",
    "all_knobs": "knob",
    "pick": "knob",
    "tune": "search.search",
}


def __getattr__(name: str) -> Any:  # lazily: the script's process imports this package for a knob alone
    if name not in _HOMES:
        raise AttributeError(
            f"module 'truestep.tune' has no attribute {name!r}. It has {', '.join(__all__)}."
        )
    return getattr(import_module(f"truestep.tune.{_HOMES[name]}"), name)
