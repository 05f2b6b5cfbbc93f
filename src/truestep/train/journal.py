"""The journal: losses and logged values on their way from the device to the record.

Values are kept as they are and fetched in bulk, so that the loop never waits for the device.
"""

import itertools
import operator
from collections.abc import Iterable, Iterator

import torch
from torch.optim import Optimizer

from truestep.dist import LaneSum
from truestep.memory import peak_bytes
from truestep.record import Record

Scalar = float | torch.Tensor
"""A number, on the host or still on the device."""


NONFINITE = "nonfinite"
"""The name of the values by which a device tells that it left a step out."""

Term = tuple[int, Scalar, Scalar]
"""What one lane contributed in one pass: its number, its loss times its weight, and the weight."""


class Journal:
    """Collects what steps produce; `flush` writes one line for many steps."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self.steps: list[tuple[int, float, list[Term], float]] = []
        """Finished steps since the last flush: number, end in seconds, terms, seconds waited for the batch.
        The loop appends to it."""
        self._values: dict[str, tuple[list[int], list[Scalar]]] = {}
        self._names: dict[int, str] = {}
        self._rates: dict[str, object] = {}
        self._peak_bytes = 0
        self.last_loss: float | None = None
        self.first_nonfinite: int | None = None
        """The first step that the device left out because something was not finite, as far as fetched."""

    def add_value(self, name: str, value: Scalar, *, step: int) -> None:
        """Note a value of a step under a name."""
        known = self._values.get(name)
        if known is None:
            self._values[name] = ([step], [value])
        else:
            known[0].append(step)
            known[1].append(value)

    def name_rates(self, optimizers: Iterable[Optimizer]) -> None:
        """Name optimizers by their order, not by who steps first: that differs in a run that was resumed."""
        for number, optimizer in enumerate(optimizers, start=1):
            self._names[id(optimizer)] = "learning_rate" if number == 1 else f"learning_rate.{number}"

    def add_rate(self, optimizer: Optimizer, *, step: int) -> None:
        """Note the learning rate of a step's update, if it is not that of the update before."""
        rate: Scalar = optimizer.param_groups[0]["lr"]
        # A rate kept as a tensor is changed in place, and asking for its value would wait for the device.
        now = rate if rate.__class__ is float else getattr(rate, "_version", rate)
        name = self._names[id(optimizer)]
        if self._rates.get(name) == now:
            return
        self._rates[name] = now
        self.add_value(name, rate.clone() if isinstance(rate, torch.Tensor) else rate, step=step)

    def flush(self) -> None:
        """Fetch everything noted so far, at once, and write it."""
        if self.steps:
            self._add_peak(self.steps[-1][0])
        values, self._values = self._values, {}
        if self.steps:
            losses = _losses([terms for _, _, terms, _ in self.steps])
            self.last_loss = losses[-1]
            ends_us = [int(end_s * 1e6) for _, end_s, _, _ in self.steps]
            waits_us = [int(wait_s * 1e6) for _, _, _, wait_s in self.steps]
            first = self.steps[0][0]
            self._record.write("steps", first=first, loss=losses, end_us=ends_us, wait_us=waits_us)
            self.steps.clear()
        if values:
            fetched = _fetch([value for _, scalars in values.values() for value in scalars])
            for name, (steps, _) in values.items():
                numbers = list(itertools.islice(fetched, len(steps)))
                if name == NONFINITE and self.first_nonfinite is None:
                    bad = (step for step, number in zip(steps, numbers, strict=True) if number)
                    self.first_nonfinite = next(bad, None)
                self._record.write("values", name=name, steps=steps, values=numbers)

    def _add_peak(self, step: int) -> None:
        now_bytes = peak_bytes()
        if now_bytes > self._peak_bytes:
            self._peak_bytes = now_bytes
            self.add_value("memory_bytes", now_bytes, step=step)


def _losses(steps: list[list[Term]]) -> list[float]:
    if all(len(terms) == 1 and terms[0][1].__class__ is float and terms[0][2] == 1.0 for terms in steps):
        return [terms[0][1] for terms in steps]  # type: ignore[misc]  # one lane on the CPU, as it says
    fetched = _fetch([scalar for terms in steps for _, *both in terms for scalar in both])
    return [_mean_loss([(lane, next(fetched), next(fetched)) for lane, _, _ in terms]) for terms in steps]


def _fetch(scalars: list[Scalar]) -> Iterator[float]:
    if set(map(type, scalars)) == {float}:
        return iter(scalars)  # type: ignore[arg-type]  # as it says
    on_device = [scalar for scalar in scalars if isinstance(scalar, torch.Tensor)]
    if len({scalar.dtype for scalar in on_device}) > 1:
        on_device = [scalar.to(torch.float64) for scalar in on_device]
    numbers = iter(torch.stack(on_device).detach().to(torch.float64).tolist() if on_device else ())
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
