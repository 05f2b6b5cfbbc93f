"""A report of a run: the line on top, the numbers in the head, the charts, and the order of sections.

Owns the composition. How each part looks is left to the others.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from truestep.base.runfiles import replacing
from truestep.errors import UsageError
from truestep.report import charts, measures, sections
from truestep.report.charts import Chart
from truestep.report.markup import Markup, table, tag
from truestep.report.numerals import compared_steps, count, duration, plain
from truestep.report.page import Section, Tile, render
from truestep.report.runs import Mark, Story, read_run
from truestep.report.thin import Series
from truestep.report.verdicts import check_tone, check_words, count_findings, findings_in, missing, unsure

_MAX_CHARTS = 24
"""Of the script's own values; the table has all of them."""
_RATE, _MEMORY, _LOSS_SCALE = "learning_rate", "memory_bytes", "loss_scale"
_GRADIENTS = {
    "grad_norm": "Gradient norm before clipping",
    _LOSS_SCALE: "Loss scale",
    "skipped": "Steps without an update",
    "nonfinite": "Steps skipped on the device",
}
"""Titles of the values that `truestep.Run` logs about gradients."""
_MB = 10**6
_MAX_VALUE = 200
"""Characters of a value in the table of evaluations: a matrix is drawn, not spelled out."""
_SAMENESS = {
    True: ("same in {steps}", "same", "good"),
    False: ("different when repeated", "different", "bad"),
    None: ("verify was inconclusive", "inconclusive", "warn"),
}
"""What verify said: in the line on top, in its tile, and the tile's tone."""


def write_report(run: Path, *, out: Path | None = None) -> Path:
    """Write the report of a run as one HTML file; without `out` into the run's folder."""
    story = read_run(run)
    found = [section for make in _SECTIONS if (section := make(story)) is not None]
    page = render(story.name, verdict=_verdict(story), tiles=list(_tiles(story)), sections=found)
    path = out or run / "report.html"
    try:
        # A lone surrogate is no text that a file can hold: it is written by its number, not dropped.
        with replacing(path) as file:
            file.write(page.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written ({error.strerror}). Pass another file with --out."
        ) from error
    return path


def _verdict(story: Story) -> str:
    parts = []
    if len(story.loss):
        of = f" of {story.total:,}" if story.total is not None else ""
        stopped = "stopped after " if _is_stopped(story) else ""
        spent = f" in {duration(float(story.seconds[-1]))}"
        last = f"last loss {plain(float(story.loss.values[-1]))}"
        parts.append(f"{stopped}{story.num_steps:,}{of} steps{spent}, {last}")
    kills, resumes = story.count("kill"), story.count("resume")
    if resumes:
        parts.append(f"resumed {_times(resumes)}" + (f" (killed {_times(kills)})" if kills else ""))
    if (verified := story.last_answer("verify")) is not None:
        parts.append(_SAMENESS[sections.is_same(verified)][0].format(steps=compared_steps(verified)))
    if (checked := story.last_answer("check")) is not None:
        parts.append(check_words(checked))
    return "; ".join(parts).removesuffix(".") + "." if parts else "The record has no steps yet."


def _is_stopped(story: Story) -> bool:
    return bool(story.lives) and story.lives[-1].is_stopped


def _times(num: int) -> str:
    return {1: "once", 2: "twice"}.get(num, f"{num:,} times")


def _tiles(story: Story) -> Iterator[Tile]:
    if len(story.loss):
        yield _progress(story)
        finite, last = story.loss.finite, float(story.loss.values[-1])
        lowest = f"lowest {plain(float(finite.values.min()))}" if len(finite) else ""
        yield Tile("Last loss", plain(last), lowest, "" if np.isfinite(last) else "bad")
        seconds = float(story.seconds[-1])
        rate = len(story.loss) / seconds if seconds > 0 else float("nan")
        yield Tile("Training time", duration(seconds), f"{plain(rate)} steps/s")
    if story.lives:
        note = count(story.lives[-1].processes, "process", plural="processes")
        if story.count("kill"):
            note = f"killed {_times(story.count('kill'))}, now {note}"
        resumes = story.count("resume")
        yield Tile("Resumed", _times(resumes) if resumes else "never", note)
    if (verified := story.last_answer("verify")) is not None:
        _, words, tone = _SAMENESS[sections.is_same(verified)]
        runs = verified.get("runs")
        note = count(len(runs) if isinstance(runs, list) else 0, "run")
        yield Tile("Verify", words, f"{note}, {compared_steps(verified)}" if words == "same" else note, tone)
    if (checked := story.last_answer("check")) is not None:
        num = sum(count_findings(checked).values())
        value = missing(checked) if unsure(checked) and not num else f"{num:,}"
        note = check_words(checked).removeprefix(f"{missing(checked)}: ")
        yield Tile("Findings", value, note, check_tone(checked))


def _progress(story: Story) -> Tile:
    if story.total is None:
        return Tile("Steps", f"{story.num_steps:,}")
    is_done = story.num_steps >= story.total
    note = "all done" if is_done else f"of {story.total:,}{', stopped' if _is_stopped(story) else ''}"
    tone = "good" if is_done else "warn" if _is_stopped(story) else ""
    return Tile("Steps", f"{story.num_steps:,}", note, tone)


def _section(
    key: str, title: str, drawn: Sequence[Chart | None], *, after: Markup | None = None
) -> Section | None:
    found = [chart for chart in drawn if chart is not None]
    return Section(key, title, charts=found, after=after) if found or after is not None else None


def _held(story: Story, name: str) -> Series:
    """Return values that stay as they are until the next one: the last holds until the run's last step."""
    series = story.values[name]
    if not len(series) or not len(story.loss):
        return series
    end = max(int(story.loss.steps[-1]), int(series.steps[-1]))
    return Series(steps=np.append(series.steps, end), values=np.append(series.values, series.values[-1]))


def _loss(story: Story) -> Section | None:
    beside = {**measures.evaluation_series(story), **story.values}
    named = [("each step", story.loss), *((name, found) for name, found in beside.items() if _is_loss(name))]
    chart = charts.curves("Loss of each step", named, marks=_marks(story), may_log=True, is_smoothed=True)
    if chart is None and len(story.loss):
        words = f"None of the {len(story.loss):,} recorded losses is a number."
        return Section("loss", "Loss", tag("p", words, class_="lead"))
    return _section("loss", "Loss", [chart])


def _is_loss(name: str) -> bool:
    """Whether a value belongs beside the loss of each step, as that of a validation set does."""
    return "loss" in name.lower() and name != _LOSS_SCALE


def _marks(story: Story) -> list[Mark]:
    """Return what happened in the run and what `check` found."""
    by_step: dict[int, list[str]] = {}
    for item in findings_in(story.last_answer("check") or {}):
        step = item.get("step")
        if item.get("severity") in ("error", "warning") and type(step) is int and 0 < step <= story.num_steps:
            by_step.setdefault(step, []).append(f"{item.get('code', '')} {item.get('message', '')}".strip())
    found = [
        Mark(step=step, kind="finding", words=f"step {step:,}: {'; '.join(words[:3])}", time_s=0.0)
        for step, words in sorted(by_step.items())
    ]
    return [*story.marks, *found]


def _is_rate(name: str) -> bool:
    return name.split(".", maxsplit=1)[0] == _RATE


def _optimisation(story: Story) -> Section | None:
    drawn = [
        charts.curves(
            "Learning rate" + name.removeprefix(_RATE).replace(".", ", optimizer "),
            [("learning rate", _held(story, name))],
            is_stepped=True,
        )
        for name in filter(_is_rate, story.values)
    ]
    drawn += [
        charts.curves(title, [(name, story.values[name])], is_smoothed=name == "grad_norm")
        for name, title in _GRADIENTS.items()
        if name in story.values
    ]
    return _section("optimisation", "Learning rate and gradients", drawn)


def _logged(story: Story) -> Section | None:
    house = {_MEMORY, *_GRADIENTS}
    names = [name for name in story.values if not (name in house or _is_rate(name) or _is_loss(name))]
    drawn = [charts.curves(name, [(name, story.values[name])]) for name in names[:_MAX_CHARTS]]
    return _section("values", "Logged values", drawn, after=sections.logged(story) if names else None)


def _evaluations(story: Story) -> Section | None:
    if not story.evaluations:
        return None
    found = {name: series for name, series in measures.evaluation_series(story).items() if len(series) > 1}
    names = [name for name in found if not _is_loss(name)][:_MAX_CHARTS]
    drawn = [charts.curves(name, [(name, found[name])]) for name in names]
    rows = [(item.name, f"{item.cursor:,}", _value(item.value)) for item in story.evaluations]
    listed = table(("evaluation", "after steps", "value"), rows, label="Evaluations")
    return _section(
        "evaluations",
        "Evaluations",
        drawn,
        after=sections.folded("All evaluations", listed, num=len(rows)),
    )


def _value(value: object) -> str:
    text = plain(value) if isinstance(value, int | float) else str(value)
    return text if len(text) <= _MAX_VALUE else text[:_MAX_VALUE] + "…"


def _speed(story: Story) -> Section | None:
    rate = [("steps/s", measures.speed(story))]
    shares = measures.time_shares(story)
    drawn = [
        charts.curves("Steps per second", rate, marks=_marks(story), is_smoothed=True, has_zero=True),
        charts.shares("Where a step's time goes", shares, unit="share of a step") if shares else None,
        _memory(story),
    ]
    return _section("speed", "Speed and memory", drawn)


def _memory(story: Story) -> Chart | None:
    if _MEMORY not in story.values:
        return None
    held = _held(story, _MEMORY)
    series = Series(steps=held.steps, values=held.values / _MB)
    return charts.curves("Peak memory", [("MB", series)], unit="MB", is_stepped=True, has_zero=True)


_SECTIONS = (
    _loss,
    sections.findings,
    sections.verdict,
    _optimisation,
    _evaluations,
    _logged,
    _speed,
    sections.happened,
    sections.facts,
    sections.unread,
)
"""In the order of the page. Each returns None where the record has nothing for it."""
