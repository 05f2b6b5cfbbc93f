"""Loss spikes, told from the spread of a run's own losses and not by a fixed factor.

Owns when a loss counts as one. Knows nothing about where losses come from.
"""

from collections import deque
from dataclasses import dataclass
from statistics import median

_NUM_BEFORE, _MIN_BEFORE = 128, 32
_FAR = 6.0
_MIN_DIFFERENT = 8
"""A loss that has hardly any values says nothing about its spread."""


@dataclass(frozen=True, kw_only=True)
class Spike:
    """A loss that is far from those before it."""

    step: int
    """Its number, counted from 1."""
    loss: float
    usual: float
    """The median of the losses before it."""
    highest: float
    """The highest of them."""
    num_before: int

    def __str__(self) -> str:
        return (
            f"loss spike at step {self.step}: {self.loss:.4g}. The {self.num_before} losses before it have "
            f"a median of {self.usual:.4g} and a maximum of {self.highest:.4g}"
        )


class Spikes:
    """Takes losses in their order."""

    def __init__(self) -> None:
        self._before: deque[float] = deque(maxlen=_NUM_BEFORE)
        self._highest, self._age = float("-inf"), 0
        """The highest of them, and how many came after it."""

    def take(self, step: int, loss: float) -> Spike | None:
        """Return the spike that this loss is: six times as far above the median as any loss before it."""
        before = self._before
        found = None
        if loss - loss != 0:  # infinite or NaN: others report it
            return None
        if len(before) >= _MIN_BEFORE and loss > self._highest:
            usual, highest = median(before), self._highest
            if loss - usual > _FAR * (highest - usual) and len(set(before)) >= _MIN_DIFFERENT:
                found = Spike(step=step, loss=loss, usual=usual, highest=highest, num_before=len(before))
        before.append(loss)
        self._age += 1
        if loss >= self._highest:
            self._highest, self._age = loss, 0
        elif self._age == _NUM_BEFORE:  # it has left
            self._highest = max(before)
            self._age = [*reversed(before)].index(self._highest)
        return found
