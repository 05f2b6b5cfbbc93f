"""The learning-rate range test: one short run with a rising rate, and what its curve says.

Owns the run, the reading of the curve, and how both are shown. The script's side is in `sweeping`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from truestep import watch
from truestep.errors import UsageError
from truestep.picture import COLOURS, INK, Picture
from truestep.tune.in_script.sweeping import Smooth, rate_at
from truestep.tune.search.solo import Solo, run_alone
from truestep.watch.launch.scratch import Scratch

BETA = 0.9
"""How much of the average stays from step to step: about ten steps are seen together."""
MIN_STEPS = 20
STEPS = 100
_SETTING = "truestep.tune.in_script.sweeping:sweep"
_NEAR = 2.0
"""Rates that differ by less are alike: the next seed's curve may say so."""
_BARS = "▁▂▃▄▅▆▇█"
_NUM_BARS = 64


@dataclass(frozen=True, kw_only=True)
class Point:
    """One step of the sweep: the loss before it, with the rate that it was given."""

    rate: float
    loss: float
    smoothed: float

    def as_fields(self) -> dict[str, float | None]:
        """Return plain values; JSON has none for what is not finite."""
        return {name: value if math.isfinite(value) else None for name, value in asdict(self).items()}


@dataclass(frozen=True, kw_only=True)
class Swept:
    """An optimizer, and the rates of its groups as the script means them."""

    name: str
    rates: tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True)
class Readings:
    """What a curve says, each as a rate."""

    steepest: float
    """Where the loss falls most for a given factor."""
    valley: float
    """Two thirds along the longest stretch in which the loss falls."""
    tenth: float
    """A tenth of the rate at which the loss is lowest: just before it grows."""
    falls_from: float
    falls_to: float
    """The range in which the loss falls, in all to its lowest."""


@dataclass(frozen=True, kw_only=True)
class RangeTest:
    """The curve, what it says, and the script's own rate beside it."""

    points: tuple[Point, ...]
    optimizers: tuple[Swept, ...]
    readings: Readings | None
    """None if the loss fell at no rate."""
    is_diverged: bool
    """Whether the sweep ended since the loss grew, and not at the highest rate."""
    notes: tuple[str, ...] = ()

    @property
    def suggestion(self) -> float | None:
        """The rate to begin with, for the group with the largest one; others in proportion."""
        return None if self.readings is None else self.readings.valley

    @property
    def own(self) -> float:
        """The script's own rate: the largest among the groups of its first optimizer."""
        return max(rate for rate in self.optimizers[0].rates if rate is not None)

    def as_fields(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "suggestion": self.suggestion,
            "own": self.own,
            "readings": None if self.readings is None else asdict(self.readings),
            "is_diverged": self.is_diverged,
            "optimizers": [{"name": item.name, "rates": list(item.rates)} for item in self.optimizers],
            "points": [point.as_fields() for point in self.points],
            "notes": list(self.notes),
        }


def range_test(
    script: watch.Script,
    *,
    low: float = 1e-7,
    high: float = 10.0,
    steps: int = STEPS,
    on_status: Callable[[str], None] | None = None,
    show: IO[Any] | None = None,
) -> RangeTest:
    """Run the script with a rate that rises from `low` to `high`, and read the curve of its losses.

    It runs in a copy of the working folder. Groups keep their ratios: the largest of the rates is the one
    that rises. The script's schedulers go on and change nothing. The sweep ends when the loss is not finite,
    or four times the best so far. A script with fewer steps is run again with a sweep of as many.
    `on_status` is given a line now and then, `show` the script's own output.
    """
    _check(low, high, steps)
    with Scratch(Path.cwd()) as scratch:
        runs = _Runs(script=script, scratch=scratch, low=low, high=high, on_status=on_status or _ignore)
        solo = runs.run(steps, show)
        num_made = len(_steps_of(solo))
        notes = []
        if solo.ended == "finished" and MIN_STEPS <= num_made < steps:
            notes.append(
                f"The script runs {num_made} steps, fewer than {steps}, so the sweep uses {num_made}."
            )
            steps = num_made
            solo = runs.run(steps, None)
    points = _points(solo, low=low, high=high, steps=steps)
    optimizers = _optimizers(solo)
    _check_outcome(solo, points, optimizers)
    is_diverged = any(line["is_diverged"] for line in _steps_of(solo)) or solo.ended == "raised"
    if solo.ended == "raised":
        notes.append(f"The script stopped at {_rate(points[-1].rate)}: {solo.error}")
    return RangeTest(
        points=tuple(points),
        optimizers=tuple(optimizers),
        readings=read_curve(points),
        is_diverged=is_diverged,
        notes=(*notes, *_notes_on(optimizers)),
    )


def _check(low: float, high: float, steps: int) -> None:
    if not 0 < low < high < math.inf:
        raise UsageError(f"rates must rise from above 0, got low={low} and high={high}. Pass 1e-7 and 10.")
    if steps < MIN_STEPS:
        raise UsageError(f"a range test needs at least {MIN_STEPS} steps, got {steps}. Pass 100.")


def _ignore(_line: str) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class _Runs:
    script: watch.Script
    scratch: Scratch
    low: float
    high: float
    on_status: Callable[[str], None]

    def run(self, steps: int, show: IO[Any] | None) -> Solo:
        def follow(line: dict[str, Any]) -> None:
            if line["what"] == "step":
                rate = rate_at(line["index"], low=self.low, high=self.high, steps=steps)
                self.on_status(f"step {line['index'] + 1} of {steps}, learning rate {_rate(rate)}")

        value = {"low": self.low, "high": self.high, "steps": steps, "beta": BETA}
        return run_alone(
            self.script, self.scratch, setting=(_SETTING, value), kind="swept", show=show, follow=follow
        )


def _steps_of(solo: Solo) -> list[dict[str, Any]]:
    return [line for line in solo.lines if line["what"] == "step"]


def _points(solo: Solo, *, low: float, high: float, steps: int) -> list[Point]:
    """Return the points with a loss; the last one may not be finite."""
    smooth, points = Smooth(BETA), []
    for line in _steps_of(solo):
        if line["loss"] is not None:
            rate, loss = rate_at(line["index"], low=low, high=high, steps=steps), float(line["loss"])
            points.append(Point(rate=rate, loss=loss, smoothed=smooth.add(loss)))
    return points


def _optimizers(solo: Solo) -> list[Swept]:
    return [
        Swept(name=line["name"], rates=tuple(line["rates"]))
        for line in solo.lines
        if line["what"] == "optimizer"
    ]


def _check_outcome(solo: Solo, points: Sequence[Point], optimizers: Sequence[Swept]) -> None:
    if len(points) >= MIN_STEPS and any(rate is not None for rate in optimizers[0].rates):
        return
    num_steps = len(_steps_of(solo))
    if solo.ended == "raised" or solo.code != 0:
        found = f"the script failed after {num_steps} steps: {solo.error or f'exit code {solo.code}'}"
        raise UsageError(f"{found}\n{solo.tail}\nRun it alone first.")
    if num_steps >= MIN_STEPS and len(points) < MIN_STEPS:
        raise UsageError(
            f"only {len(points)} of {num_steps} steps had a loss (a backward pass from a scalar). "
            f"A range test needs {MIN_STEPS}."
        )
    if num_steps >= MIN_STEPS:
        name = optimizers[0].name
        raise UsageError(
            f"{name} has no learning rate to set: `lr` in its groups is not a number. Pass a number."
        )
    raise UsageError(
        f"the script ran {num_steps} steps, a range test needs at least {MIN_STEPS}. Let it run more. "
        "If it resumes from a checkpoint in this folder, move the checkpoint away."
    )


def _notes_on(optimizers: Sequence[Swept]) -> list[str]:
    notes = []
    if len(optimizers) > 1:
        names = " and ".join(item.name for item in optimizers)
        notes.append(f"{names} were swept together; the loss is from the first one's steps.")
    ratios = [_ratios(item) for item in optimizers]
    for item, words in zip(optimizers, ratios, strict=True):
        if words:
            notes.append(f"The groups of {item.name} keep their ratio {words}; rates are the largest one's.")
    return notes


def _ratios(item: Swept) -> str:
    rates = [rate for rate in item.rates if rate is not None]
    if len(set(rates)) < 2:
        return ""
    return " : ".join(f"{rate / max(rates):.2g}" for rate in dict.fromkeys(rates))


def read_curve(points: Sequence[Point]) -> Readings | None:
    """Return what a curve says; None if the loss does not fall by more than it wavers."""
    finite = [point for point in points if math.isfinite(point.smoothed)]
    if len(finite) < MIN_STEPS // 2:
        return None
    smoothed = [point.smoothed for point in finite]
    num_first = max(3, len(finite) // 4)
    first = smoothed[num_first // 3 : num_first]
    start, wavering = sum(first) / len(first), max(first) - min(first)
    lowest = min(range(len(finite)), key=smoothed.__getitem__)
    fall = start - smoothed[lowest]
    if lowest < num_first or fall <= max(wavering, 1e-3 * abs(start)):
        return None
    begin = max(at for at in range(lowest) if smoothed[at] >= start - 0.05 * fall)
    return Readings(
        steepest=finite[_steepest(smoothed, begin, lowest)].rate,
        valley=finite[_valley(smoothed)].rate,
        tenth=finite[lowest].rate / 10,
        falls_from=finite[begin].rate,
        falls_to=finite[lowest].rate,
    )


def _steepest(smoothed: Sequence[float], begin: int, lowest: int) -> int:
    """Return where the loss falls most from the point before to the one after, once it falls."""
    return min(range(max(1, begin), lowest), key=lambda at: smoothed[at + 1] - smoothed[at - 1])


def _valley(smoothed: Sequence[float]) -> int:
    """Return the place two thirds along the longest falling stretch: its points counted back from its end."""
    lengths = [1] * len(smoothed)
    for at, value in enumerate(smoothed):
        lengths[at] += max((lengths[early] for early in range(at) if smoothed[early] > value), default=0)
    end = max(range(len(smoothed)), key=lengths.__getitem__)
    length = lengths[end] - 1
    return end - length + 2 * length // 3


def render(test: RangeTest) -> list[str]:
    """Return the answer as lines for a terminal."""
    first, last = test.points[0], test.points[-1]
    why = "the loss grew" if test.is_diverged else "the end of the range"
    head = f"{len(test.points)} steps from {_rate(first.rate)} to {_rate(last.rate)}, where it stopped: {why}"
    lines = [f"learning rate  {head}", "", *_curve(test), ""]
    readings = test.readings
    if readings is None:
        lines += [
            "no suggestion  at no rate did the loss fall by more than its noise",
            f"yours          {_rate(test.own)}",
        ]
    else:
        lines += [
            f"suggestion     {_rate(test.suggestion or 0.0)}",
            f"yours          {_rate(test.own)}  {compare(test)}",
            _fall(readings),
        ]
    return lines + list(test.notes)


def _fall(readings: Readings) -> str:
    between = f"{_rate(readings.falls_from)} to {_rate(readings.falls_to)}"
    return f"the loss falls from {between}, most steeply at {_rate(readings.steepest)}"


def compare(test: RangeTest) -> str:
    """Say in words where the script's own rate lies."""
    readings, suggestion = test.readings, test.suggestion
    if readings is None or suggestion is None:
        return ""
    if test.own <= 0:
        return "the loss does not fall with it"
    ratio = test.own / suggestion
    if 1 / _NEAR <= ratio <= _NEAR:
        return "about the same"
    words = f"{_times(ratio)} higher" if ratio > 1 else f"{_times(1 / ratio)} lower"
    if test.own > readings.falls_to:
        return f"{words}, above every rate at which the loss fell"
    if test.own < readings.falls_from:
        return f"{words}, too low for the loss to fall in this few steps"
    return f"{words}, inside the range in which the loss falls"


def _times(ratio: float) -> str:
    return f"{ratio:.1f} times" if ratio < 9.95 else f"{ratio:.0f} times"


def _rate(rate: float) -> str:
    return f"{rate:.2g}".replace("e-0", "e-")


def _curve(test: RangeTest) -> list[str]:
    """Return the smoothed curve as one line of bars, with the range of losses."""
    values = [point.smoothed for point in test.points if math.isfinite(point.smoothed)]
    top = min(max(values), _top(values))
    low = min(values)
    height = (top - low) or 1.0
    num = min(_NUM_BARS, len(values))
    cuts = [round(part * len(values) / num) for part in range(num + 1)]
    means = [sum(values[begin:end]) / (end - begin) for begin, end in pairwise(cuts)]
    bars = "".join(_BARS[min(7, int((min(mean, top) - low) / height * 8))] for mean in means)
    return [
        f"  loss {bars}",
        f"  from {low:.4g} (lowest) to {top:.4g}{' and above' if max(values) > top else ''}",
    ]


def _top(values: Sequence[float]) -> float:
    """Return up to where losses are worth showing: what comes after the rise would flatten all before."""
    early = max(values[: max(1, len(values) // 4)])
    return early + 0.3 * (early - min(values))


def draw(test: RangeTest) -> Picture:
    """Draw the losses over the rates, with the suggestion and the script's own rate."""
    picture = Picture(width=7.6, height=4.2)
    shown = [point for point in test.points if math.isfinite(point.loss)]
    rates = [point.rate for point in shown]
    smoothed = [point.smoothed for point in shown]
    with picture.drawing() as figure:
        axes = figure.subplots()
        axes.set_xscale("log")
        axes.plot(rates, [point.loss for point in shown], ".", color=COLOURS[7], alpha=0.5, label="each step")
        axes.plot(rates, smoothed, color=COLOURS[0], linewidth=2, label="smoothed")
        low, top = min(point.loss for point in shown), _top(smoothed)
        if low < top:
            axes.set_ylim(low - 0.08 * (top - low), top)
        if test.readings is not None:
            fall = (test.readings.falls_from, test.readings.falls_to)
            axes.axvspan(*fall, color=COLOURS[2], alpha=0.08, linewidth=0, label="the loss falls")
        marks = [
            (test.suggestion, f"suggestion {_rate(test.suggestion or 0.0)}", COLOURS[2], "-"),
            (test.own, f"yours {_rate(test.own)}", COLOURS[1], "--"),
        ]
        for rate, words, colour, style in marks:
            if rate is not None:
                axes.axvline(rate, color=colour, linestyle=style, linewidth=1.5, label=words)
        axes.set_xlabel("learning rate")
        axes.set_ylabel("loss")
        axes.set_title("Learning-rate range test", color=INK, loc="left")
        axes.legend(edgecolor="none", framealpha=0.85, loc="lower left")
    return picture
