"""A curve that grows: a value by step, kept whole."""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence

import numpy

from truestep.report.thin import Series


class Curve:
    """Values by step, in the order of steps. Sixteen bytes for each."""

    def __init__(self) -> None:
        self.steps = array("q")
        self.values = array("d")

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return zip(self.steps, self.values, strict=True)

    def add(self, step: int, value: float) -> None:
        """Set the value of a step; the last one given counts."""
        at = len(self.steps)
        if at and step <= self.steps[-1]:  # nearly never: steps are recorded in order
            at = bisect_left(self.steps, step)
            if self.steps[at] == step:
                self.values[at] = value
                return
        self.steps.insert(at, step)
        self.values.insert(at, value)

    def extend(self, steps: range, values: Sequence[float]) -> None:
        """Set the values of steps that follow each other."""
        if self.steps and steps.start <= self.steps[-1]:
            for step, value in zip(steps, values, strict=True):
                self.add(step, value)
        else:
            self.steps.extend(steps)
            self.values.extend(values)

    def drop_from(self, step: int) -> int:
        """Forget a step and all that follow; return how many they were."""
        at = bisect_left(self.steps, step)
        num = len(self.steps) - at
        del self.steps[at:]
        del self.values[at:]
        return num

    def at(self, step: int) -> float | None:
        """Return the value at a step, or at the nearest one before it."""
        at = bisect_left(self.steps, step + 1)
        return self.values[at - 1] if at else None

    @property
    def series(self) -> Series:
        """A copy, for computing with."""
        return Series(steps=numpy.array(self.steps), values=numpy.array(self.values))

    @property
    def num_nonfinite(self) -> int:
        """How many values are no number or infinite."""
        return len(self) - len(self.series.finite)
