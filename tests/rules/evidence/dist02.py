"""Evidence for DIST02 diverged-replicas."""

from typing import Any

from truestep.rules import Evidence
from truestep.watch import Moment, Process
from truestep.watch.evidence.facts.surroundings import ReplicaDigested


def _recorded(*weights: str) -> Evidence:
    """Return evidence of processes with these digests of their one weight after the first step."""
    place: dict[str, Any] = {"file": "train.py", "line": 9, "function": "<module>"}
    processes = []
    for rank, digest in enumerate(weights):
        facts = ReplicaDigested(0, 0, {"weight": digest}, "ab", {})
        moment = Moment(facts=facts, step=0, at_s=1.0, took_s=0.0, **place)
        processes.append(Process(pid=rank, argv=[], rank=rank, size=len(weights), moments=[moment]))
    return Evidence(processes=processes)


BUGGY = _recorded("0a", "0b")
CLEAN = _recorded("0a", "0a")
