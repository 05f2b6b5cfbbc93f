"""What the processes of a run tell each other once per pass, so that all decide alike.

One vector is added up; an entry is zero on all processes but one, or counts them, so the sum is exact.
"""

import signal
from collections.abc import Mapping
from typing import NamedTuple

import torch

from truestep.run.dist import World
from truestep.run.train.journal import Scalar

_BAD, _TOUCHED, _SAVE, _SIGINT, _SIGTERM, _REPEATED, _WITNESS, _NUM_FLAGS = 0, 1, 2, 3, 4, 5, 6, 8
_HALF = 2**32


class Word(NamedTuple):
    """What one process has to say, and what all have agreed on afterwards."""

    weights: Mapping[int, Scalar]
    """For each lane: how much it weighs."""
    losses: Mapping[int, Scalar]
    """For each lane: the sum of its losses times their weight."""
    is_bad: bool = False
    """A loss is not finite."""
    is_touched: bool = False
    """Something drew from Python's or NumPy's generator."""
    is_repeated: bool = False
    """A lane had several backward passes."""
    is_save_due: bool = False
    received: signal.Signals | None = None
    witness: int | None = None


class Exchange:
    """Exchanges words among the processes of a world."""

    def __init__(self, world: World, *, num_lanes: int, device: torch.device) -> None:
        self._world, self._num_lanes, self._device = world, num_lanes, device
        self.is_save_due = False
        """Set by the first process, whose clock decides for all."""
        self.received: signal.Signals | None = None
        """The signal that this process was sent."""

    def __call__(self, word: Word) -> Word:
        """Return what all processes together have to say."""
        flags = torch.zeros(_NUM_FLAGS, dtype=torch.float64)
        flags[_BAD], flags[_TOUCHED], flags[_SAVE] = word.is_bad, word.is_touched, self.is_save_due
        self.is_save_due = False
        flags[_REPEATED] = word.is_repeated
        flags[_SIGINT] = self.received == signal.SIGINT
        flags[_SIGTERM] = self.received == signal.SIGTERM
        if word.witness is not None:
            flags[_WITNESS], flags[_WITNESS + 1] = divmod(word.witness, _HALF)
        lanes = torch.zeros(2, self._num_lanes, dtype=torch.float64, device=self._device)
        for row, values in zip(lanes, (word.weights, word.losses), strict=True):
            for lane, value in values.items():
                row[lane] = value
        if self._device.type == "cpu":
            both = torch.cat([flags, lanes.view(-1)])
            self._world.add(both)
            flags, lanes = both[:_NUM_FLAGS], both[_NUM_FLAGS:].view(2, -1)
            weights, losses = lanes.tolist()
        else:
            # What is on the device stays there: asking for it would make the loop wait.
            self._world.add(flags)
            self._world.add(lanes)
            weights, losses = map(list, lanes)
        return _agreed(flags.tolist(), weights, losses)


def _agreed(flags: list[float], weights: list[Scalar], losses: list[Scalar]) -> Word:
    received = None
    if flags[_SIGINT] or flags[_SIGTERM]:
        received = signal.SIGINT if flags[_SIGINT] else signal.SIGTERM
    return Word(
        weights=dict(enumerate(weights)),
        losses=dict(enumerate(losses)),
        is_bad=flags[_BAD] > 0,
        is_touched=flags[_TOUCHED] > 0,
        is_repeated=flags[_REPEATED] > 0,
        is_save_due=flags[_SAVE] > 0,
        received=received,
        witness=int(flags[_WITNESS]) * _HALF + int(flags[_WITNESS + 1]),
    )
