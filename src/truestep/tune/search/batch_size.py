"""Batch sizes: how fast the script is with each, how much memory it needs, and the largest that fits.

Owns which sizes are tried, in a process each, the prediction of memory, and how the result is shown.
The script's side is in `resizing`. No batch size is written into settings: another one changes learning.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import IO, Any

from truestep import watch
from truestep.base.memory import OUT_OF_MEMORY, available_bytes, in_bytes, largest_batch
from truestep.errors import UsageError
from truestep.picture import COLOURS, FAINT, INK, Picture
from truestep.tune.search.intervals import Interval, interval, warm_up
from truestep.tune.search.solo import Solo, run_alone
from truestep.watch.launch.scratch import Scratch

ADVICE = (
    "A different batch size changes learning, so tune the learning rate again.",
    "truestep never writes it into settings.",
)
_SETTING = "truestep.tune.in_script.resizing:resize"
_MIN_STEPS, _MAX_STEPS = 10, 400
_SEARCH_STEPS = 4
"""Of a run that only looks at memory: the first step makes the optimizer's state, the next add to it."""
_MIN_TIMED = 3
"""Steps after the warm-up, without which no speed is told."""
_MAX_DOUBLINGS = 8
_SLOWER = 0.95
"""Below this part of the best speed a size is slower, if the intervals say so too."""
_OF_AVAILABLE = 0.9
_NEAR = 1.05
"""The search for the largest ends when a size that is larger by this factor does not fit."""
_APART = 0.75
_MAX_SEARCH, _MAX_SEARCH_S = 6, 20.0
"""How many runs the search takes at most, and for how long one of them may make steps."""
_MIN_GROWTH = 16_000_000
_KILLED = -9


@dataclass(frozen=True, kw_only=True)
class Size:
    """One size that was tried."""

    batch_size: int
    fits: bool
    samples_per_s: Interval | None
    """None if there were too few steps."""
    peak_bytes: int | None
    """The most that was held while it trained; None if it was ended before."""
    before_bytes: int | None
    """What was held before the first batch."""
    num_warm: int
    """Steps at the beginning that were left out: they were not like the rest."""

    def as_fields(self) -> dict[str, Any]:
        """Return plain values."""
        speed = self.samples_per_s
        return {**asdict(self), "samples_per_s": None if speed is None else speed.as_fields()}


@dataclass(frozen=True, kw_only=True)
class BatchSizes:
    """All sizes that were tried, from small to large, and what follows."""

    own: int
    """The script's own."""
    sizes: tuple[Size, ...]
    limit_bytes: int
    memory: str
    """Whose memory it is."""
    stopped: str
    """Why no larger one was tried."""
    largest: int
    """The largest that was run and fits."""
    too_large: int | None
    """The smallest that is known not to fit, by a run or by prediction; None if memory was not the limit."""
    predicted: int | None = None
    """If memory was not the limit: up to which size it would do, by how it grew; None if it hardly did."""

    @property
    def fastest(self) -> int:
        """The smallest of those whose speed is not told apart from the best."""
        timed = [size for size in self.sizes if size.fits and size.samples_per_s is not None]
        best = max((size.samples_per_s.median for size in timed if size.samples_per_s), default=0.0)
        near = [s.batch_size for s in timed if s.samples_per_s and s.samples_per_s.high >= _SLOWER * best]
        return min(near, default=self.own)

    def of(self, batch_size: int) -> Size:
        """Return what was measured for a size."""
        return next(size for size in self.sizes if size.batch_size == batch_size)

    def as_fields(self) -> dict[str, Any]:
        """Return plain values."""
        sizes = [size.as_fields() for size in self.sizes]
        return {**asdict(self), "sizes": sizes, "fastest": self.fastest, "advice": " ".join(ADVICE)}


def batch_sizes(
    script: watch.Script,
    *,
    on_status: Callable[[str], None] | None = None,
    show: IO[Any] | None = None,
    limit_bytes: int | None = None,
    seconds: float = 2.0,
) -> BatchSizes:
    """Run the script with batch sizes from half its own on, each twice the one before, while they fit.

    Memory is that of the process with its loader workers, or the device's. Before a size is tried its need is
    predicted from those before, and a process that passes `limit_bytes` is ended; if that is not given, nine
    tenths of what is available. Then the largest size that fits is searched. Each runs for about `seconds`.
    `on_status` is given a line for each size, `show` the script's own output of its first run.
    """
    if limit_bytes is not None and limit_bytes < 1:
        raise UsageError(
            f"limit_bytes must be above 0, got {limit_bytes}. Omit it to use the available memory."
        )
    if seconds <= 0:
        raise UsageError(f"seconds must be above 0, got {seconds}. Pass 2.")
    with Scratch(Path.cwd()) as scratch:
        trials = _Trials(
            script=script,
            scratch=scratch,
            seconds=seconds,
            limit_bytes=limit_bytes or int(_OF_AVAILABLE * available_bytes()),
            on_status=on_status or (lambda _line: None),
        )
        trials.begin(show)
        stopped, too_large = "Ctrl-C ended the search", None
        with suppress(KeyboardInterrupt):  # the sizes measured by then are the answer
            stopped, too_large = trials.double()
            too_large = trials.reach(too_large)
    return BatchSizes(
        own=trials.own,
        sizes=tuple(sorted(trials.sizes, key=lambda size: size.batch_size)),
        limit_bytes=trials.limit_bytes,
        memory="the device" if trials.is_on_gpu else "the process and its workers (resident)",
        stopped=stopped,
        largest=trials.largest.batch_size,
        too_large=too_large,
        predicted=trials.first_too_large() - 1 if too_large is None and trials.grows() else None,
    )


@dataclass(kw_only=True)
class _Trials:
    """The sizes that were tried, and what the next one would need."""

    script: watch.Script
    scratch: Scratch
    seconds: float
    limit_bytes: int
    on_status: Callable[[str], None]
    own: int = 0
    loaders: tuple[int, ...] = ()
    workers: int = 0
    is_global: bool = False
    num_samples: int | None = None
    is_on_gpu: bool = False
    sizes: list[Size] = field(default_factory=list)
    failure: str = ""
    """How the script failed in the last trial, if it did."""

    @property
    def largest(self) -> Size:
        return max((size for size in self.sizes if size.fits), key=lambda size: size.batch_size)

    def begin(self, show: IO[Any] | None) -> None:
        """Run the script as it stands: which loader feeds training, and its size."""
        self.on_status("the script's batch size")
        solo = self._run(loaders=(), num=1, show=show)
        steps = next((line for line in solo.lines if line["what"] == "steps"), None)
        self._check_beginning(solo, steps)
        assert steps is not None
        loaders = {line["index"]: line for line in solo.lines if line["what"] == "loader"}
        chosen = [loaders[index] for index in steps["trained"]]
        self.loaders = tuple(line["index"] for line in chosen)
        self.own, self.workers = chosen[0]["batch_size"], chosen[0]["workers"]
        self.is_global = chosen[0]["is_global"]
        counts = [line["num_samples"] for line in chosen if line["num_samples"] is not None]
        self.num_samples = min(counts, default=None)
        if steps["device_bytes"] is not None:
            self.is_on_gpu, self.limit_bytes = True, steps["device_bytes"]
        self.sizes.append(self._size(self.own, solo))

    def _check_beginning(self, solo: Solo, steps: dict[str, Any] | None) -> None:
        if solo.is_over_limit or (
            steps and steps["peak_bytes"] > self.limit_bytes and not steps["device_bytes"]
        ):
            raise UsageError(
                f"the unmodified script needs more than {in_bytes(self.limit_bytes)}. "
                "Pass a larger limit_bytes, or give the script a smaller batch size."
            )
        if steps is None or solo.ended == "raised" or not steps["seconds"]:
            reason = solo.error or f"it ran {len(steps['seconds']) if steps else 0} steps"
            raise UsageError(f"the script's steps could not be timed: {reason}\n{solo.tail}".rstrip())
        loaders = {line["index"]: line for line in solo.lines if line["what"] == "loader"}
        if not steps["trained"]:
            raise UsageError(
                "the batch size cannot be changed: no DataLoader feeds training. "
                "Change it where the script creates batches."
            )
        for line in (loaders[index] for index in steps["trained"]):
            if line["why"]:
                raise UsageError(
                    f"the batch size of the {line['name']} cannot be changed: {line['why']}. "
                    "Change it in the script."
                )

    def double(self) -> tuple[str, int | None]:
        """Try half the size, then twice the one before. Return why that ended, and what does not fit."""
        if self.own > 1:
            self._try(self.own // 2)
        for power in range(1, _MAX_DOUBLINGS + 1):
            size = self.own * 2**power
            if self.num_samples is not None and size > self.num_samples:
                return f"the dataset has {self.num_samples} samples, fewer than {size}", None
            needed = self.predict(size)
            if needed > self.limit_bytes:
                words = f"{size} would need about {in_bytes(needed)} of {in_bytes(self.limit_bytes)}"
                return words, size
            tried = self._try(size)
            if not tried.fits and not self.failure:
                return f"{size} needs more than {in_bytes(self.limit_bytes)}", size
            reason = self._reason_to_stop(tried)
            if reason:
                return reason, None
        return f"{2**_MAX_DOUBLINGS} times the script's batch size is the most that is tried", None

    def _reason_to_stop(self, tried: Size) -> str:
        """Return why a size that is not too large for memory is the last."""
        if self.failure:
            return f"the script fails with {tried.batch_size}: {self.failure}"
        if tried.samples_per_s is None:
            return f"with {tried.batch_size} the script runs too few steps to be timed"
        return (
            f"{tried.batch_size} is slower than smaller ones" if self._is_slower(tried.samples_per_s) else ""
        )

    def _is_slower(self, speed: Interval) -> bool:
        before = [size.samples_per_s for size in self.sizes[:-1] if size.samples_per_s is not None]
        best = max(before, key=lambda item: item.median)
        return speed.high < best.low and speed.median < _SLOWER * best.median

    def predict(self, size: int) -> int:
        """Return the memory that a size would need: by a line through the largest measured and one below."""
        fixed, per_sample = self._line()
        return int(fixed + per_sample * size)

    def _line(self) -> tuple[float, float]:
        known = sorted((s.batch_size, s.peak_bytes) for s in self.sizes if s.peak_bytes is not None)
        size, peak = known[-1]
        # Apart enough: allocators round, and the memory of near sizes differs by that.
        below = [item for item in known if item[0] <= _APART * size]
        if below:
            slope = max(1.0, (peak - below[-1][1]) / (size - below[-1][0]))
        else:  # all of it for samples: more than it can be
            slope = max(1.0, (peak - (self.sizes[0].before_bytes or 0)) / size)
        return peak - slope * size, slope

    def reach(self, too_large: int | None) -> int | None:
        """Search the largest size that fits, if there is such a limit and its steps are not too long."""
        if too_large is None and not self.failure:
            bound = self.first_too_large()
            speed = self.largest.samples_per_s
            is_quick = speed is not None and bound * _SEARCH_STEPS / speed.median < _MAX_SEARCH_S
            is_there = self.num_samples is None or bound <= self.num_samples
            too_large = bound if is_quick and is_there else None
        return None if too_large is None else self._search(too_large)

    def _search(self, too_large: int) -> int:
        """Find the largest size that fits, by prediction and a run; return the smallest known not to."""
        for _ in range(_MAX_SEARCH):
            good = self.largest.batch_size
            if self._is_narrow(good, too_large):
                break
            fixed, per_sample = self._line()
            reach = largest_batch(self.limit_bytes, fixed_bytes=fixed, per_sample_bytes=per_sample)
            middle = (good + too_large) // 2
            # A little below what is predicted to fit just so: a run that passes the limit tells less.
            guess = reach - reach // 50 if good < reach < too_large else middle
            guess = min(max(guess, good + 1), too_large - 1)
            if not self._try(guess, max_steps=_SEARCH_STEPS).fits:
                too_large = guess
        return min(too_large, max(self.largest.batch_size + 1, self.first_too_large()))

    def _is_narrow(self, good: int, too_large: int) -> bool:
        next_one = max(good + 1, int(good * _NEAR))
        return too_large <= next_one or self.predict(next_one) > self.limit_bytes

    def grows(self) -> bool:
        """Whether memory grows with the batch size by more than it differs from run to run."""
        peaks = [size.peak_bytes for size in self.sizes if size.peak_bytes is not None]
        least = min(peaks) if len(peaks) > 1 else self.sizes[0].before_bytes or 0
        return max(peaks) - least > _MIN_GROWTH

    def first_too_large(self) -> int:
        """Return the smallest size that would not fit, by how memory grew."""
        fixed, per_sample = self._line()
        return largest_batch(self.limit_bytes, fixed_bytes=fixed, per_sample_bytes=per_sample) + 1

    def _try(self, size: int, *, max_steps: int = _MAX_STEPS) -> Size:
        self.on_status(f"batch size {size}")
        solo = self._run(loaders=self.loaders, num=size, max_steps=max_steps)
        tried = self._size(size, solo)
        self.sizes.append(tried)
        return tried

    def _run(
        self, *, loaders: Sequence[int], num: int, max_steps: int = _MAX_STEPS, show: IO[Any] | None = None
    ) -> Solo:
        value = {
            "loaders": list(loaders),
            "num": num,
            "den": self.own or 1,
            "min_steps": _MIN_STEPS,
            "max_steps": max_steps,
            "seconds": self.seconds,
        }
        limit = None if self.is_on_gpu else self.limit_bytes
        return run_alone(
            self.script,
            self.scratch,
            setting=(_SETTING, value),
            kind="sized",
            show=show,
            max_bytes=limit,
        )

    def _size(self, size: int, solo: Solo) -> Size:
        steps = next((line for line in solo.lines if line["what"] == "steps"), None)
        is_out = solo.is_over_limit or solo.code == _KILLED or bool(OUT_OF_MEMORY.search(solo.error or ""))
        self.failure = (solo.error or f"exit code {solo.code}") if solo.code != 0 and not is_out else ""
        peak = None if steps is None or is_out else steps["peak_bytes"]
        speed, num_warm = (None, 0) if steps is None or is_out else self._speed(size, steps)
        return Size(
            batch_size=size,
            fits=not is_out and not self.failure and peak is not None and peak <= self.limit_bytes,
            samples_per_s=speed,
            peak_bytes=peak,
            before_bytes=None if steps is None else steps["before_bytes"],
            num_warm=num_warm,
        )

    def _speed(self, size: int, steps: dict[str, Any]) -> tuple[Interval | None, int]:
        seconds = steps["seconds"]
        settled = warm_up(seconds)
        num_warm = len(seconds) // 2 if settled is None else settled
        # Workers deliver in bursts: a batch from each, then a wait.
        group = max(1, self.workers)
        kept = seconds[num_warm:]
        parts = [sum(kept[at : at + group]) / group for at in range(0, len(kept) - group + 1, group)]
        if len(parts) < _MIN_TIMED:
            return None, num_warm
        per_step = 1 if self.is_global else max(1, round(median(steps["batches"])))
        times = interval(parts)
        samples = size * per_step
        speed = Interval(
            median=samples / times.median, low=samples / times.high, high=samples / times.low, num=times.num
        )
        return speed, num_warm


def render(found: BatchSizes) -> list[str]:
    """Return the answer as lines for a terminal."""
    lines = [f"{'batch size':>12}  {'samples/s':>10}  {'interval':<17}  {'peak memory':>11}"]
    shown = [size for size in found.sizes if _is_doubled(size, found) or size.batch_size == found.largest]
    lines += [_row(size, found) for size in shown]
    before = next((size.before_bytes for size in found.sizes if size.before_bytes), 0)
    lines += [
        f"memory: {found.memory}; {in_bytes(before)} before the first batch",
        f"stopped: {found.stopped}",
    ]
    if found.too_large is not None:
        lines.append(f"largest that fits in {in_bytes(found.limit_bytes)}: {found.largest}")
    elif found.predicted is None:
        lines.append("memory hardly grows with the batch size, so it is not a limit")
    else:
        about = float(f"{found.predicted:.1e}")
        lines.append(f"about {about:,.0f} would fit in {in_bytes(found.limit_bytes)} (untested)")
    lines.append(f"fastest: {found.fastest}{' (yours)' if found.fastest == found.own else ''}")
    return [*lines, *ADVICE]


def _is_doubled(size: Size, found: BatchSizes) -> bool:
    ratio = size.batch_size / found.own
    return ratio < 1 or (ratio.is_integer() and int(ratio).bit_count() == 1)


def _row(size: Size, found: BatchSizes) -> str:
    speed = size.samples_per_s
    name = f"{size.batch_size}{' (yours)' if size.batch_size == found.own else ''}"
    rate = "" if speed is None else f"{speed.median:,.0f}"
    between = "" if speed is None else f"{speed.low:,.0f} to {speed.high:,.0f}"
    memory = "does not fit" if not size.fits else in_bytes(size.peak_bytes or 0)
    return f"{name:>12}  {rate:>10}  {between:<17}  {memory:>11}"


def draw(found: BatchSizes) -> Picture:
    """Draw speed and memory over the batch size, one above the other."""
    picture = Picture(width=7.6, height=5.2)
    fitting = [size for size in found.sizes if size.fits]
    timed = [(size.batch_size, size.samples_per_s) for size in fitting if size.samples_per_s is not None]
    memory = [(size.batch_size, size.peak_bytes / 1e6) for size in fitting if size.peak_bytes is not None]
    with picture.drawing() as figure:
        above, below = figure.subplots(2, 1, sharex=True)
        above.set_xscale("log", base=2)
        numbers = [number for number, _ in timed]
        above.fill_between(
            numbers,
            [s.low for _, s in timed],
            [s.high for _, s in timed],
            color=COLOURS[0],
            alpha=0.2,
            linewidth=0,
        )
        above.plot(numbers, [speed.median for _, speed in timed], "o-", color=COLOURS[0], linewidth=2)
        above.set_ylim(bottom=0)
        above.set_ylabel("samples per second")
        above.set_title("Batch size: speed and memory", color=INK, loc="left")
        below.plot(
            [number for number, _ in memory],
            [mega for _, mega in memory],
            "o-",
            color=COLOURS[1],
            linewidth=2,
        )
        below.set_ylim(bottom=0)
        below.set_ylabel("peak memory, MB")
        below.set_xlabel("batch size")
        if found.too_large is not None:
            below.axhline(found.limit_bytes / 1e6, color=INK, linestyle="--", linewidth=1)
            below.text(
                memory[0][0], found.limit_bytes / 1e6, f"limit, {found.largest} fits", va="bottom", color=INK
            )
            below.set_ylim(0, found.limit_bytes / 1e6 * 1.15)
        for axes in (above, below):
            axes.axvline(found.own, color=FAINT, linewidth=6, zorder=0)
        above.text(found.own, 0, " yours", color=COLOURS[7], va="bottom")
        below.xaxis.set_major_formatter(lambda value, _place: f"{value:,.0f}")
        below.minorticks_off()
    return picture
