"""Arrivals: when a rank entered its collectives, from which rules and tables see who waits for whom.

Owns what is noted at a rank's end. Reads torch's flight recorder, which is always on; adds no collective.
"""

from time import time_ns

import torch

from truestep.base.device import peak_bytes
from truestep.watch.evidence.facts.surroundings import GroupJoined, RankEnded
from truestep.watch.script import collectives
from truestep.watch.script.tape import Tape


def watch(tape: Tape) -> None:
    """Note them when the script ends."""
    if torch.distributed.is_available():
        tape.listen(_Arrivals(tape), "closing")


class _Arrivals:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def closing(self) -> None:
        if self._tape.has(GroupJoined):
            self._tape.note(RankEnded(collectives.arrivals(), peak_bytes(), time_ns()))
