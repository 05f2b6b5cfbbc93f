"""The journal: losses and logged values on their way from the device to the record.

Values are kept as they are and fetched in bulk, so that the loop never waits for the device.
"""

import operator
from collections.abc import Iterator

import torch

from truestep.dist import LaneSum
from truestep.record import Record

Scalar = float | torch.Tensor
"""A number, on the host or still on the device."""


Term = tuple[int, Scalar, Scalar]
"""What one lane contributed in one pass: its number, its loss times its weight, and the weight."""


class Journal:
    """Collects what steps produce; `flush` writes one line for many steps."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self.steps: list[tuple[int, float, list[Term]]] = []
        """Finished steps since the last flush: number, end in seconds, terms. The loop appends to it."""
        self._values: dict[str, list[tuple[int, Scalar]]] = {}
        self.last_loss: float | None = None
        self.first_nonfinite: int | None = None
        """The first step that the device left out because something was not finite, as far as fetched."""

    def add_value(self, name: str, value: Scalar, *, step: int) -> None:
        """Note a value of a step under a name."""
        self._values.setdefault(name, []).append((step, value))

    def flush(self) -> None:
        """Fetch everything noted so far, at once, and write it."""
        values, self._values = self._values, {}
        if self.steps:
            losses = _losses([terms for _, _, terms in self.steps])
            self.last_loss = losses[-1]
            ends_us = [int(end_s * 1e6) for _, end_s, _ in self.steps]
            self._record.write("steps", first=self.steps[0][0], loss=losses, end_us=ends_us)
            self.steps.clear()
        if values:
            fetched = _fetch([value for pairs in values.values() for _, value in pairs])
            for name, pairs in values.items():
                numbers = [next(fetched) for _ in pairs]
                if name == "nonfinite" and self.first_nonfinite is None:
                    bad = (step for (step, _), number in zip(pairs, numbers, strict=True) if number)
                    self.first_nonfinite = next(bad, None)
                self._record.write("values", name=name, steps=[step for step, _ in pairs], values=numbers)


def _losses(steps: list[list[Term]]) -> list[float]:
    if all(len(terms) == 1 and terms[0][1].__class__ is float for terms in steps):
        return [terms[0][1] for terms in steps]  # type: ignore[misc]  # one lane on the CPU, as it says
    fetched = _fetch([scalar for terms in steps for _, *both in terms for scalar in both])
    return [_mean_loss([(lane, next(fetched), next(fetched)) for lane, _, _ in terms]) for terms in steps]


def _fetch(scalars: list[Scalar]) -> Iterator[float]:
    on_device = [scalar.detach().to(torch.float64) for scalar in scalars if isinstance(scalar, torch.Tensor)]
    numbers = iter(torch.stack(on_device).tolist() if on_device else ())
    return iter([next(numbers) if isinstance(scalar, torch.Tensor) else float(scalar) for scalar in scalars])


def _mean_loss(terms: list[Term]) -> float:
    """The loss of the whole batch: lanes weighted, several passes of one lane added, in tree order."""
    if len(terms) == 1:
        return float(terms[0][1]) / float(terms[0][2])
    lanes: dict[int, tuple[float, float]] = {}
    for lane, loss, weight in terms:
        lanes[lane] = (lanes.get(lane, (0.0, 0.0))[0] + float(loss), float(weight))
    losses, weights = LaneSum[float](operator.add), LaneSum[float](operator.add)
    for lane, (loss, weight) in lanes.items():
        losses.push(lane, loss)
        weights.push(lane, weight)
    return losses.take() / weights.take()
