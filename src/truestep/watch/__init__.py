"""Watching: someone's training script in a process of its own, and what torch was asked to do in it.

Owns how a script is started, which of torch's entry points are observed, and the evidence that is kept.
Reads and never writes: no draw, no tensor, no order is changed. What evidence means is left to others.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from truestep.watch.evidence.kinds import Facts
    from truestep.watch.evidence.moment import Moment
    from truestep.watch.evidence.operation import Operation
    from truestep.watch.evidence.process import Process, Update, read, values_of
    from truestep.watch.launch.command import Script, command, start
    from truestep.watch.plan import DIGESTS, Plan

__all__ = [
    "DIGESTS",
    "Facts",
    "Moment",
    "Operation",
    "Plan",
    "Process",
    "Script",
    "Update",
    "command",
    "read",
    "start",
    "values_of",
]

_HOMES = {
    "DIGESTS": "plan",
    "Facts": "evidence.kinds",
    "Moment": "evidence.moment",
    "Operation": "evidence.operation",
    "Plan": "plan",
    "Process": "evidence.process",
    "Script": "launch.command",
    "Update": "evidence.process",
    "command": "launch.command",
    "read": "evidence.process",
    "start": "launch.command",
    "values_of": "evidence.process",
}


def __getattr__(name: str) -> Any:  # lazily: the watched process imports this package before the script's own
    if name not in _HOMES:
        raise AttributeError(
            f"module 'truestep.watch' has no attribute {name!r}. It has {', '.join(__all__)}."
        )
    return getattr(import_module(f"truestep.watch.{_HOMES[name]}"), name)
