"""Where the time of a step goes: one run of somebody's script under observation.

Owns the run and the result. What the script's process does is in `profiling`, which moment belongs to which
phase in `phases`, what torch.profiler adds in `details`.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import IO, Any

import numpy as np

from truestep import watch
from truestep.errors import UsageError
from truestep.tune.knob import PHASES
from truestep.tune.profile.details import LineShare, ModuleShare, sum_up
from truestep.tune.profile.phases import TimedStep, cut_steps
from truestep.tune.search.started import start
from truestep.watch.evidence.facts.loading import BatchFetched, LoaderUsed
from truestep.watch.launch import following
from truestep.watch.launch.scratch import Scratch

STEPS = 30
_WARM, _MAX_WARM = 3, 24
_DETAILS = 5
_LEAST_S, _MOST_S = 1.0, 60.0
"""Steps are timed for so long at least, and at most."""
_MAX_TIMES = 20
"""So many times the wanted number of steps, if they are short."""
_ENOUGH, _LEAST_STEPS = 10, 6
_LOW, _HIGH = 10, 90
"""Percentiles: eight of ten steps lie between them."""
_QUIET = {"KINETO_LOG_LEVEL": "99"}
"""The profiler of torch 2.13 writes lines of its own into the script's output."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """A phase's part of a step. All parts add up to 1."""

    phase: str
    share: float
    """Of all the time of the timed steps."""
    low: float
    high: float
    """Where the share lies in eight of ten steps; what all steps together give is always inside."""
    seconds: float


@dataclass(frozen=True, kw_only=True)
class LoaderUse:
    """The loader that most of the time for data goes to, and what a step takes from it."""

    kind: str
    dataset: str
    file: str | None
    line: int | None
    """Where its batches are taken."""
    workers: int
    batch_size: int | None
    length: int | None
    fetch_s: float
    """Per step: what the script waits for it."""
    fetch_cpu_s: float
    """Per step: what the processors work for it in the script's own process."""
    workers_cpu_s: float | None = None
    """Per step: what they work for it in its workers; None if that is not known."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Where the time of a step goes. Shares are of steps without a profiler."""

    step_s: float
    """The median."""
    step_low_s: float
    step_high_s: float
    mean_s: float
    """With steps that begin an epoch, without those that were interrupted by evaluation."""
    num_steps: int
    num_warm: int
    is_enough: bool
    """Whether there were enough steps to believe the shares."""
    shares: tuple[Share, ...]
    interrupted_steps: int
    interrupted_share: float
    """The share of all timed seconds that evaluation between steps took; in none of the shares above."""
    modules: tuple[ModuleShare, ...]
    lines: tuple[LineShare, ...]
    loader: LoaderUse | None = None
    compute_cpu_s: float = 0.0
    """Per step: what the processors work for all but data."""
    threads: int = 1
    device: str = "cpu"
    troubles: tuple[str, ...] = ()
    """What could not be told, and why."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What was seen of loaders, optimizers, models and settings, for `knob.Facts`."""

    def share_of(self, phase: str) -> float:
        """Return a phase's part of a step."""
        return next((row.share for row in self.shares if row.phase == phase), 0.0)

    def as_fields(self) -> dict[str, Any]:
        """Return plain values."""
        fields = asdict(self)
        fields["shares"] = {row.pop("phase"): row for row in fields["shares"]}
        return fields


def profile(
    script: watch.Script,
    *,
    steps: int = STEPS,
    on_status: Callable[[str], None] = lambda _line: None,
    show: IO[Any] | None = None,
) -> Profile:
    """Run a script in a copy of the working folder until its steps are timed and traced, then end it.

    Short steps are timed for a second, long ones for a minute at most. `show` is where its output goes. A
    script that ends before that is run once more with a shorter course.
    """
    if steps < 1:
        raise UsageError(f"steps must be at least 1, got {steps}.")
    with Scratch(Path.cwd()) as scratch:
        on_status("timing steps")
        ran = _Run(script, scratch=scratch, show=show, on_status=on_status)
        ran.go(_course(steps))
        if not ran.is_complete and ran.is_short:
            on_status(f"the script runs only {ran.num_steps} steps: measuring again with fewer")
            ran.go(_short_course(ran.num_steps))
        return ran.result()


def _course(steps: int) -> dict[str, Any]:
    return {
        "warm": _WARM,
        "max_warm": _MAX_WARM,
        "steps": steps,
        "least_s": _LEAST_S,
        "most_s": _MOST_S,
        "max_steps": steps * _MAX_TIMES,
        "details": _DETAILS,
    }


def _short_course(num_steps: int) -> dict[str, Any]:
    warm = max(1, num_steps // 6)
    details = min(_DETAILS, max(1, num_steps // 6))
    timed = max(1, num_steps - warm - details)
    return {
        "warm": warm,
        "max_warm": warm,
        "steps": timed,
        "least_s": 0.0,
        "most_s": _MOST_S,
        "max_steps": timed,
        "details": details,
    }


class _Run:
    """One script, run until the course is over."""

    def __init__(
        self,
        script: watch.Script,
        *,
        scratch: Scratch,
        show: IO[Any] | None,
        on_status: Callable[[str], None],
    ) -> None:
        self._script, self._scratch, self._show, self._on_status = script, scratch, show, on_status
        self.raw: dict[str, Any] = {}
        self._process: watch.Process | None = None

    @property
    def num_steps(self) -> int:
        """How many steps the script has made."""
        return int(self.raw.get("steps", 0))

    @property
    def is_complete(self) -> bool:
        """Whether it went through the whole course."""
        return bool(self.raw.get("is_complete"))

    @property
    def is_short(self) -> bool:
        """Whether it ended by itself, after enough steps for a shorter course."""
        ended = self._process.ended if self._process else None
        return ended == "finished" and self.num_steps >= _LEAST_STEPS

    def go(self, course: dict[str, Any]) -> None:
        """Run it, and read what it left."""
        settings = (("truestep.tune.in_script.profiling:observe", course),)
        plan = watch.Plan(look="never", settings=settings)
        started = start(self._script, self._scratch, plan=plan, show=self._show, environment=_QUIET)
        self._folder = started.folder
        try:
            code = following.wait(started.process, self._folder, plan=plan, on_step=self._show_step)
        finally:
            started.end()
        self._process = next((item for item in watch.read(self._folder) if item.num_steps), None)
        self._require(code, started.tail)

    def _show_step(self, step: int, _num_steps: int | None) -> None:
        self._on_status(f"timing steps, step {step}")

    def _require(self, code: int, tail: str) -> None:
        """Read what was told, or say why there is nothing."""
        process = self._process
        path = self._folder / f"profile-{process.pid}.json" if process else None
        self.raw = json.loads(path.read_text()) if path and path.exists() else {}
        if code != 0 and not self.is_complete:
            raise UsageError(
                f"the script ended with exit code {code} before it was timed. Run it alone first.\n{tail}"
            )
        if process is None:
            raise UsageError(
                "the script ran no optimizer step. Pass a script that trains, with its arguments."
            )
        if "first" not in self.raw and not self.is_short:
            raise UsageError(
                f"the script ran {process.num_steps} optimizer steps, too few to time. "
                f"Let it run {_WARM + _ENOUGH + _DETAILS} or more."
            )

    def result(self) -> Profile:
        """Return what follows from it."""
        assert self._process is not None
        moments, raw = self._process.moments, self.raw
        steps = cut_steps(moments, range(raw["first"], raw["last"]))
        usual = [step for step in steps if not step.is_interrupted]
        if not usual:
            raise UsageError(
                f"the script ended after {self.num_steps} steps, before any was timed. Let it run longer."
            )
        shares = shares_of(usual)
        details = sum_up(
            self._folder / f"pieces-{self._process.pid}.npz",
            raw,
            moments=moments,
            shares={row.phase: row.share for row in shares},
            original=self._scratch.original,
        )
        took = [step.took_s for step in usual]
        loader = self._loader(steps)
        return Profile(
            step_s=median(took),
            step_low_s=float(np.percentile(took, _LOW)),
            step_high_s=float(np.percentile(took, _HIGH)),
            mean_s=sum(took) / len(took),
            num_steps=len(usual),
            num_warm=raw["first"],
            is_enough=len(usual) >= _ENOUGH,
            shares=shares,
            interrupted_steps=len(steps) - len(usual),
            interrupted_share=_interrupted_share(steps, median(took)),
            modules=details.modules,
            lines=details.lines,
            loader=loader,
            compute_cpu_s=max(0.0, raw["cpu_s"] - raw["fetch_cpu_s"]),
            threads=raw["threads"],
            device=raw["device"],
            troubles=(*raw["troubles"], *self._process.troubles),
            facts=raw["facts"],
        )

    def _loader(self, steps: Sequence[TimedStep]) -> LoaderUse | None:
        """Return the loader that most time went to."""
        assert self._process is not None
        begin_s, end_s = steps[0].begin_s, steps[-1].begin_s + steps[-1].took_s
        batches = [item for item in self._process.of(BatchFetched) if begin_s <= item.at_s <= end_s]
        if not batches:
            return None
        took: dict[Any, float] = {}
        for item in batches:
            took[item.facts.loader] = took.get(item.facts.loader, 0.0) + item.took_s
        number = max(took, key=lambda loader: took[loader])
        place = next(item for item in batches if item.facts.loader == number)
        loaders = {item.facts.loader: item.facts for item in self._process.of(LoaderUsed)}
        used = loaders.get(number, LoaderUsed(number, "", "", "", None, 0, None))
        return LoaderUse(
            kind=used.class_name,
            dataset=used.dataset,
            file=None if place.file is None else self._scratch.original(place.file),
            line=place.line,
            workers=used.num_workers,
            batch_size=used.batch_size,
            length=used.length,
            fetch_s=took[number] / len(steps),
            fetch_cpu_s=self.raw["fetch_cpu_s"],
            workers_cpu_s=self.raw["workers_cpu_s"],
        )


def shares_of(steps: Sequence[TimedStep]) -> tuple[Share, ...]:
    """Return the phases' parts of these steps."""
    total = sum(step.took_s for step in steps)
    sums = {phase: sum(step.seconds(phase) for step in steps) for phase in PHASES}
    parts = {phase: sums[phase] / total for phase in PHASES if phase != "other"}
    parts["other"] = 1.0 - sum(parts.values())
    rows = []
    for phase in PHASES:
        each = [step.seconds(phase) / step.took_s for step in steps]
        low, high = np.percentile(each, (_LOW, _HIGH))
        rows.append(
            Share(
                phase=phase,
                share=parts[phase],
                low=min(float(low), parts[phase]),
                high=max(float(high), parts[phase]),
                seconds=sums[phase] / len(steps),
            )
        )
    return tuple(rows)


def percents(shares: Sequence[Share]) -> list[int]:
    """Return whole percents that add up to 100: the largest remainders are rounded up."""
    exact = [100 * row.share for row in shares]
    whole = [int(value) for value in exact]
    order = sorted(range(len(exact)), key=lambda index: whole[index] - exact[index])
    for index in order[: 100 - sum(whole)]:
        whole[index] += 1
    return whole


def _interrupted_share(steps: Sequence[TimedStep], middle_s: float) -> float:
    more = sum(max(0.0, step.took_s - middle_s) for step in steps if step.is_interrupted)
    return more / sum(step.took_s for step in steps)
