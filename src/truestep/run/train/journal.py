"""The journal: losses and logged values on their way from the device to the record.

Values are kept as they are and fetched in bulk, so that the loop never waits for the device.
"""

import itertools
import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeGuard

import torch
from torch.optim import Optimizer

from truestep.base.device import LateCopy, peak_bytes
from truestep.record import Record
from truestep.run.dist import LaneSum

Scalar = float | torch.Tensor
"""A number, on the host or still on the device."""


NONFINITE = "nonfinite"
"""The name of the values by which a device tells that it left a step out."""

Term = tuple[int, Scalar, Scalar]
"""What one lane contributed in one pass: its number, its loss times its weight, and the weight."""
Finished = tuple[int, float, list[Term], float]
"""A finished step: its number, its end in seconds, its terms, the seconds waited for the batch."""


class Fetch:
    """Numbers of which some are on the device: they are on their way to the host when this is made."""

    def __init__(self, scalars: list[Scalar]) -> None:
        self._scalars = scalars
        late = [scalar for scalar in scalars if _is_late(scalar)]
        self._late = LateCopy(_stack(late)) if late else None

    def has_arrived(self) -> bool:
        """Whether nobody would wait for the numbers."""
        return self._late is None or self._late.has_arrived()

    def numbers(self) -> Iterator[float]:
        """Return them in their order."""
        if self._late is None:
            return map(float, self._scalars)
        late = iter(self._late.wait().tolist())
        return (next(late) if _is_late(scalar) else float(scalar) for scalar in self._scalars)


def _is_late(scalar: Scalar) -> TypeGuard[torch.Tensor]:
    return isinstance(scalar, torch.Tensor) and not scalar.is_cpu


def _stack(scalars: list[torch.Tensor]) -> torch.Tensor:
    device = scalars[0].device
    return torch.stack([scalar.detach().to(device, torch.float64).reshape(()) for scalar in scalars])


class Journal:
    """Collects what steps produce; `flush` writes one line for many steps."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self.steps: list[Finished] = []
        """Steps since values were last asked for. The loop appends to it."""
        self._asked: deque[tuple[list[Finished], dict[str, tuple[list[int], list[Scalar]]], Fetch]] = deque()
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
        """Write everything noted so far; wait for what is still on the device."""
        self._ask()
        self._write(lambda _: True)

    def advance(self) -> None:
        """Write what has arrived from the device and ask for the rest, without waiting for it."""
        self._ask()
        self._write(Fetch.has_arrived)

    def _ask(self) -> None:
        if self.steps:
            self._add_peak(self.steps[-1][0])
        values, self._values = self._values, {}
        steps = self.steps.copy()
        self.steps.clear()
        terms = (
            []
            if _are_plain(steps)
            else [number for _, _, terms, _ in steps for _, *both in terms for number in both]
        )
        if steps or values:
            fetch = Fetch([*terms, *(value for _, scalars in values.values() for value in scalars)])
            self._asked.append((steps, values, fetch))

    def _write(self, is_due: Callable[[Fetch], bool]) -> None:
        while self._asked and is_due(self._asked[0][2]):
            steps, values, fetch = self._asked.popleft()
            fetched = fetch.numbers()
            if steps:
                losses = _losses(steps, fetched)
                self.last_loss = losses[-1]
                ends_us = [int(end_s * 1e6) for _, end_s, _, _ in steps]
                waits_us = [int(wait_s * 1e6) for _, _, _, wait_s in steps]
                self._record.write("steps", first=steps[0][0], loss=losses, end_us=ends_us, wait_us=waits_us)
            for name, (numbered, _) in values.items():
                numbers = list(itertools.islice(fetched, len(numbered)))
                if name == NONFINITE and self.first_nonfinite is None:
                    bad = (step for step, number in zip(numbered, numbers, strict=True) if number)
                    self.first_nonfinite = next(bad, None)
                self._record.write("values", name=name, steps=numbered, values=numbers)

    def _add_peak(self, step: int) -> None:
        now_bytes = peak_bytes()
        if now_bytes > self._peak_bytes:
            self._peak_bytes = now_bytes
            self.add_value("memory_bytes", now_bytes, step=step)


def _are_plain(steps: list[Finished]) -> bool:
    """Whether there is one lane on the CPU: its numbers are the losses."""
    return all(
        len(terms) == 1 and terms[0][1].__class__ is float and terms[0][2] == 1.0 for _, _, terms, _ in steps
    )


def _losses(steps: list[Finished], fetched: Iterator[float]) -> list[float]:
    if _are_plain(steps):
        return [terms[0][1] for _, _, terms, _ in steps]  # type: ignore[misc]  # as it says
    return [
        _mean_loss([(lane, next(fetched), next(fetched)) for lane, _, _ in terms]) for _, _, terms, _ in steps
    ]


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
