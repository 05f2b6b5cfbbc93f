"""Compare: two models side by side on the same batches: accuracy, size, speed.

Owns the measuring, for a quantised copy or any other replacement. Verdicts say what was measured, here.
"""

import io
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor, nn

from truestep.errors import UsageError
from truestep.model.quantise import Quantised
from truestep.model.scoring import Paired, call, compare_hits, evaluating, hits, parts_of, points
from truestep.model.summary import summary
from truestep.model.tables import columns, scaled

_WARM_UPS = 3


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What a second model costs and saves against a first; pairs are (first, second)."""

    paired: Paired
    agreement: float
    """The fraction of samples for which both give the same class."""
    size_bytes: tuple[int, int]
    """Of parameters and buffers as they are stored, each once."""
    saved_bytes: tuple[int, int]
    """Of the file that `torch.save(model.state_dict())` writes."""
    seconds: tuple[float, float]
    """For one batch, the median."""
    speed: float
    """How many times as fast the second is: the median of the ratios of neighbouring timings."""
    speed_range: tuple[float, float]
    """The middle half of these ratios: how much single timings differ."""
    speed_interval: tuple[float, float]
    """Where the median lies, with the confidence asked for; from 0 to infinity for too few repeats."""
    num_threads: int
    device: str

    def __str__(self) -> str:
        (one, other), (low, high) = self.paired.accuracies, self.paired.interval
        interval = f"{points(self.paired.gain)} ({points(low)} to {points(high)})"
        sizes, saved, times = self.size_bytes, self.saved_bytes, self.seconds
        ratio = f"{self.speed:.2f}x as fast (half {self.speed_range[0]:.2f} to {self.speed_range[1]:.2f})"
        share = f"{sizes[1] / sizes[0]:.0%}" if sizes[0] else ""
        rows = [
            ["", "first", "second", "difference"],
            ["accuracy", f"{one:.2%}", f"{other:.2%}", f"{interval} points"],
            ["size", scaled(sizes[0], "B"), scaled(sizes[1], "B"), share],
            ["file", scaled(saved[0], "B"), scaled(saved[1], "B"), f"{saved[1] / saved[0]:.0%}"],
            ["time", *(f"{1000 * value:.3g} ms" for value in times), ratio],
        ]
        return f"{columns(rows)}\n\n{self.verdict}"

    @property
    def verdict(self) -> str:
        """What was shown, in a sentence each, about accuracy, size and speed."""
        low, high = self.paired.interval
        if high < 0:
            accuracy = f"The second is less accurate, by {points(-high)[1:]} points at least."
        elif low > 0:
            accuracy = f"The second is more accurate, by {points(low)[1:]} points at least."
        else:
            accuracy = (
                f"No change of accuracy is shown; a loss of up to {points(-low)[1:]} points is possible."
            )
        one, other = self.size_bytes
        size = f"It has {other / one:.0%} of the size." if one else f"It has {other:,} bytes, the first none."
        threads = "1 thread" if self.num_threads == 1 else f"{self.num_threads} threads"
        where = f"on this machine ({self.device}, {threads})"
        slow, fast = self.speed_interval
        speed = "It is faster" if slow > 1 else "It is slower" if fast < 1 else "No change of speed is shown"
        between = f"between {slow:.2f}x and {fast:.2f}x as fast"
        if math.isinf(fast):
            between = "too few repeats for an interval"
        return f"{accuracy}\n{size}\n{speed} {where}: {between}."


def compare(
    model: nn.Module,
    other: nn.Module | Quantised,
    *,
    batches: Iterable[Any],
    metric: Callable[[Tensor, Tensor], Tensor] = hits,
    repeats: int = 30,
    confidence: float = 0.95,
) -> Comparison:
    """Return accuracy, size and speed of two models on the same batches, in eval mode and without gradients.

    Batches are (inputs, targets), or mappings with "labels". `metric(scores, targets)` gives for each sample
    whether it is right. The first batch is timed `repeats` times with each, in turns, in this process and
    with its threads; other work on the machine is in the spread. Modes and generators are as before.

    >>> model = nn.Linear(64, 10)
    >>> found = compare(model, model, batches=[(torch.ones(8, 64), torch.zeros(8, dtype=torch.long))])
    >>> found.paired.gain, found.agreement
    (0.0, 1.0)
    """
    second = other.model if isinstance(other, Quantised) else other
    if repeats < 2:
        raise UsageError(f"repeats is {repeats}: a spread needs at least 2. Pass repeats=30, for example.")
    found: tuple[list[Tensor], list[Tensor]] = ([], [])
    same: list[Tensor] = []
    first_inputs: Any = None
    with evaluating(model, second):
        for batch in batches:
            inputs, targets = parts_of(batch)
            first_inputs = inputs if not same else first_inputs
            scores = call(model, inputs), call(second, inputs)
            for kept, score in zip(found, scores, strict=True):
                kept.append(metric(score, targets).bool())
            same.append(scores[0].argmax(-1) == scores[1].argmax(-1))
        paired = compare_hits(*found, confidence=confidence)
        times = _timed(model, second, inputs=first_inputs, repeats=repeats)
    ratios = sorted(one / two for one, two in times)
    slow, _, fast = quantiles(ratios, n=4)
    return Comparison(
        paired=paired,
        agreement=float(torch.cat(same).double().mean()),
        size_bytes=(summary(model).size_bytes, summary(second).size_bytes),
        saved_bytes=(_saved_bytes(model), _saved_bytes(second)),
        seconds=(median(one for one, _ in times), median(two for _, two in times)),
        speed=median(ratios),
        speed_range=(slow, fast),
        speed_interval=_around_median(ratios, confidence),
        num_threads=torch.get_num_threads(),
        device=_device(model).type,
    )


def _device(model: nn.Module) -> torch.device:
    return next((tensor.device for tensor in [*model.parameters(), *model.buffers()]), torch.device("cpu"))


def _timed(one: nn.Module, two: nn.Module, *, inputs: Any, repeats: int) -> list[tuple[float, float]]:
    device = _device(one)

    def seconds(model: nn.Module) -> float:
        start = time.perf_counter()
        call(model, inputs)
        if device.type != "cpu":  # untested on a GPU
            torch.accelerator.synchronize(device)
        return time.perf_counter() - start

    for _ in range(_WARM_UPS):
        seconds(one), seconds(two)
    # In turns, and each time in the other order: what else the machine does meets both.
    pairs: list[tuple[float, float]] = []
    for index in range(repeats):
        if index % 2:
            later = seconds(two)
            pairs.append((seconds(one), later))
        else:
            pairs.append((seconds(one), seconds(two)))
    return pairs


def _around_median(ordered: list[float], confidence: float) -> tuple[float, float]:
    """Return the interval for the median between two of the values, whatever their distribution.

    Each value lies below the median with probability a half, so the chance that the interval misses it is a
    sum of binomial coefficients, here in whole numbers. Too few values give no interval but all numbers.
    """
    allowed = Fraction(1 - confidence) * 2 ** len(ordered)
    missed, ways, rank = 0, 1, 0
    while 2 * (missed + ways) <= allowed:
        missed += ways
        ways = ways * (len(ordered) - rank) // (rank + 1)
        rank += 1
    return (ordered[rank - 1], ordered[-rank]) if rank else (0.0, math.inf)


def _saved_bytes(model: nn.Module) -> int:
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    return file.tell()
