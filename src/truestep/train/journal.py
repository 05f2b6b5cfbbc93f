"""The journal: losses and logged values on their way from the device to the record.

Values are kept as they are and fetched in bulk, so that the loop never waits for the device.
"""

import operator
from collections.abc import Iterator
from typing import NamedTuple

import torch

from truestep.dist import LaneSum
from truestep.record import Record

Scalar = float | torch.Tensor
"""A number, on the host or still on the device."""


class Term(NamedTuple):
    """What one backward pass contributed: its lane, its mean loss, and how much it weighs."""

    lane: int
    loss: Scalar
    weight: Scalar


class _Entry(NamedTuple):
    step: int
    end_s: float
    terms: list[Term]


class Journal:
    """Collects what steps produce; `flush` writes one line for many steps."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._entries: list[_Entry] = []
        self._values: dict[str, list[tuple[int, Scalar]]] = {}
        self.last_loss: float | None = None

    def add_step(self, step: int, *, end_s: float, terms: list[Term]) -> None:
        """Note a finished step."""
        self._entries.append(_Entry(step, end_s, terms))

    def add_value(self, name: str, value: Scalar, *, step: int) -> None:
        """Note a value of a step under a name."""
        self._values.setdefault(name, []).append((step, value))

    def __len__(self) -> int:
        return len(self._entries)

    def flush(self) -> None:
        """Fetch everything noted so far, at once, and write it."""
        entries, self._entries = self._entries, []
        values, self._values = self._values, {}
        fetched = _fetch(
            [scalar for entry in entries for term in entry.terms for scalar in (term.loss, term.weight)]
            + [value for pairs in values.values() for _, value in pairs]
        )
        losses = [
            _mean_loss([Term(t.lane, next(fetched), next(fetched)) for t in entry.terms]) for entry in entries
        ]
        if entries:
            self.last_loss = losses[-1]
            ends = [round(entry.end_s, 6) for entry in entries]
            self._record.write("steps", first=entries[0].step, loss=losses, end_s=ends)
        for name, pairs in values.items():
            steps = [step for step, _ in pairs]
            self._record.write("values", name=name, steps=steps, values=[next(fetched) for _ in pairs])


def _fetch(scalars: list[Scalar]) -> Iterator[float]:
    on_device = [scalar.detach().to(torch.float64) for scalar in scalars if isinstance(scalar, torch.Tensor)]
    numbers = iter(torch.stack(on_device).tolist() if on_device else ())
    return iter([next(numbers) if isinstance(scalar, torch.Tensor) else float(scalar) for scalar in scalars])


def _mean_loss(terms: list[Term]) -> float:
    """The loss of the whole batch: lanes weighted, several losses of one lane added, in tree order."""
    if len(terms) == 1:
        return float(terms[0].loss)
    lanes: dict[int, tuple[float, float]] = {}
    for lane, loss, weight in terms:
        lanes[lane] = (lanes.get(lane, (0.0, 0.0))[0] + float(loss) * float(weight), float(weight))
    losses, weights = LaneSum[float](operator.add), LaneSum[float](operator.add)
    for lane, (loss, weight) in lanes.items():
        losses.push(lane, loss)
        weights.push(lane, weight)
    return losses.take() / weights.take()
