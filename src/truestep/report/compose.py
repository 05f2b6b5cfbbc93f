"""A report from runs: which sections, in which order, and the line on top.

Owns the composition, for one run and for several over each other. How each part looks is left to the others.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from truestep.base.runfiles import replacing
from truestep.errors import UsageError
from truestep.report import charts, measures, sections
from truestep.report.charts import Chart
from truestep.report.markup import Markup, join, table, tag
from truestep.report.numerals import compared_steps, count, duration, plain, size
from truestep.report.page import Chapter, Tile, render
from truestep.report.runs import Mark, Story, read_run
from truestep.report.sections import Section
from truestep.report.thin import Series
from truestep.report.verdicts import check_tone, check_words, count_findings, findings_in, missing, unsure

_MAX_CHARTS = 24
"""Of the script's own values; the table has all of them."""
_RATE, _MEMORY, _NORM, _LOSS_SCALE = "learning_rate", "memory_bytes", "grad_norm", "loss_scale"
_MB = 10**6
_MAX_VALUE = 200
"""Characters of a value in the table of evaluations: a matrix is drawn, not spelled out."""
_SAMENESS = {
    True: ("same in {steps}", "same", "good"),
    False: ("different when repeated", "different", "bad"),
    None: ("verify was inconclusive", "inconclusive", "warn"),
}
"""What verify said: in the line on top, in its tile, and the tile's tone."""
_OWN: tuple[Callable[[Story], Section | None], ...] = (
    sections.findings,
    sections.verdict,
    sections.tuning,
    sections.happened,
    sections.facts,
    sections.unread,
)
"""What is shown of each run where several are compared."""


def write_report(runs: Sequence[Path], *, out: Path | None = None) -> Path:
    """Write the report of one or several runs as one HTML file; without `out` into the first run's folder."""
    if not runs:
        raise UsageError("a report needs at least one run folder: truestep report runs/digits")
    stories = [read_run(folder) for folder in runs]
    path = out or runs[0] / "report.html"
    page = _one(stories[0]) if len(stories) == 1 else _several(_named_apart(stories))
    try:
        # A lone surrogate is no text that a file can hold: it is written by its number, not dropped.
        with replacing(path) as file:
            file.write(page.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written ({error.strerror}). Pass another file with --out."
        ) from error
    return path


def _named_apart(stories: list[Story]) -> list[Story]:
    names = [story.name for story in stories]
    for story in stories:
        if names.count(story.name) > 1:
            story.name = str(story.folder)
    return stories


def _one(story: Story) -> str:
    loss, *measured = _measured([story])
    closing = [sections.happened(story), sections.facts(story), sections.unread(story)]
    said = [sections.findings(story), sections.verdict(story)]
    parts = [loss, *said, *measured, sections.tuning(story), *closing]
    found = [section for section in parts if section is not None]
    return render(
        story.name,
        verdict=_verdict(story),
        tiles=_tiles(story),
        chapters=[Chapter(title="", sections=found)],
    )


def _several(stories: Sequence[Story]) -> str:
    together = [_overview(stories), _differences(stories), *_measured(stories)]
    chapters = [Chapter(title="", sections=[section for section in together if section is not None])]
    for story in stories:
        own = [section(story) for section in _OWN]
        chapters.append(
            Chapter(title=story.name, sections=[section for section in own if section is not None])
        )
    names = Markup(", ".join(tag("strong", story.name) for story in stories))
    return render(f"{len(stories)} runs compared", verdict=names, tiles=[], chapters=chapters)


def _verdict(story: Story) -> Markup:
    parts = []
    if len(story.loss):
        of = f" of {story.total:,}" if story.total is not None else ""
        stopped = "stopped after " if _is_stopped(story) else ""
        spent = f" in {duration(float(story.seconds[-1]))}" if len(story.seconds) else ""
        last = f"last loss {plain(float(story.loss.values[-1]))}"
        parts.append(f"{stopped}{story.num_steps:,}{of} steps{spent}, {last}")
    kills, resumes = story.count("kill"), story.count("resume")
    if resumes:
        parts.append(f"resumed {_times(resumes)}" + (f" (killed {_times(kills)})" if kills else ""))
    if story.answers["verify"]:
        steps = compared_steps(story.answers["verify"][-1])
        parts.append(_SAMENESS[sections.is_same(story)][0].format(steps=steps))
    if story.answers["check"]:
        parts.append(check_words(story.answers["check"][-1]))
    return join(["; ".join(parts).removesuffix(".") + "." if parts else "The record has no steps yet."])


def _is_stopped(story: Story) -> bool:
    return bool(story.lives) and story.lives[-1].is_stopped


def _times(num: int) -> str:
    return {1: "once", 2: "twice"}.get(num, f"{num:,} times")


def _tiles(story: Story) -> list[Tile]:
    tiles = []
    if len(story.loss):
        finite = story.loss.finite
        lowest = f"lowest {plain(float(finite.values.min()))}" if len(finite) else ""
        last = float(story.loss.values[-1])
        tiles += [
            _progress(story),
            Tile(label="Last loss", value=plain(last), note=lowest, tone="" if np.isfinite(last) else "bad"),
            _time(story),
        ]
    if story.lives:
        tiles.append(_lives(story))
    if story.answers["verify"]:
        _, words, tone = _SAMENESS[sections.is_same(story)]
        answer = story.answers["verify"][-1]
        runs = answer.get("runs")
        note = count(len(runs) if isinstance(runs, list) else 0, "run")
        if words == "same":
            note += f", {compared_steps(answer)}"
        tiles.append(Tile(label="Verify", value=words, note=note, tone=tone))
    if story.answers["check"]:
        tiles.append(_findings(story.answers["check"][-1]))
    return tiles


def _findings(answer: dict[str, Any]) -> Tile:
    num = sum(count_findings(answer).values())
    value = missing(answer) if unsure(answer) and not num else f"{num:,}"
    note = check_words(answer).removeprefix(f"{missing(answer)}: ")
    return Tile(label="Findings", value=value, note=note, tone=check_tone(answer))


def _progress(story: Story) -> Tile:
    if story.total is None:
        return Tile(label="Steps", value=f"{story.num_steps:,}")
    is_done = story.num_steps >= story.total
    note = "all done" if is_done else f"of {story.total:,}{', stopped' if _is_stopped(story) else ''}"
    tone = "good" if is_done else "warn" if _is_stopped(story) else ""
    return Tile(label="Steps", value=f"{story.num_steps:,}", note=note, tone=tone)


def _time(story: Story) -> Tile:
    seconds = float(story.seconds[-1])
    rate = len(story.loss) / seconds if seconds > 0 else float("nan")
    return Tile(label="Training time", value=duration(seconds), note=f"{plain(rate)} steps/s")


def _lives(story: Story) -> Tile:
    last = story.lives[-1]
    note = count(last.processes, "process", plural="processes")
    if story.count("kill"):
        note = f"killed {_times(story.count('kill'))}, now {note}"
    resumes = story.count("resume")
    return Tile(label="Resumed", value=_times(resumes) if resumes else "never", note=note)


def _named(
    stories: Sequence[Story], pick: Callable[[Story], Series | None], *, name: str
) -> list[tuple[str, Series]]:
    """Return each run's series, an empty one for those without: a run has one colour in all charts."""
    if len(stories) == 1:
        name_of = {stories[0].name: name}
    else:
        name_of = {story.name: story.name for story in stories}
    empty = Series(steps=np.zeros(0, dtype=np.int64), values=np.zeros(0))
    return [(name_of[story.name], pick(story) or empty) for story in stories]


def _of(name: str) -> Callable[[Story], Series | None]:
    return lambda story: story.values.get(name)


def _extended(name: str) -> Callable[[Story], Series | None]:
    """Values that stay as they are until the next one: the last holds until the run's last step."""

    def pick(story: Story) -> Series | None:
        series = story.values.get(name)
        if series is None or not len(series) or not len(story.loss):
            return series
        end = max(int(story.loss.steps[-1]), int(series.steps[-1]))
        return Series(steps=np.append(series.steps, end), values=np.append(series.values, series.values[-1]))

    return pick


def _measured(stories: Sequence[Story]) -> list[Section | None]:
    return [
        _loss(stories),
        _optimisation(stories),
        _evaluations(stories),
        _logged(stories),
        _speed(stories),
    ]


def _section(
    key: str, title: str, drawn: Sequence[Chart | None], *, after: Markup | None = None
) -> Section | None:
    found = [chart for chart in drawn if chart is not None]
    if not found and after is None:
        return None
    return Section(key=key, title=title, charts=found, after=after)


def _loss(stories: Sequence[Story]) -> Section | None:
    named = _named(stories, lambda story: story.loss, name="each step")
    if len(stories) == 1:  # where several are compared, a run has one colour
        series = {**measures.evaluation_series(stories[0]), **stories[0].values}
        named += [(name, found) for name, found in series.items() if _is_loss(name)]
    chart = charts.curves("Loss of each step", named, marks=_marks(stories), may_log=True, is_smoothed=True)
    num = sum(len(story.loss) for story in stories)
    if chart is None and num:
        words = f"None of the {num:,} recorded losses is a number."
        return Section(key="loss", title="Loss", body=tag("p", words, class_="lead"))
    return _section("loss", "Loss", [chart])


def _is_loss(name: str) -> bool:
    """Whether a value belongs beside the loss of each step, as that of a validation set does."""
    return "loss" in name.lower() and name != _LOSS_SCALE


def _marks(stories: Sequence[Story]) -> list[Mark]:
    """Return what happened in the runs and what `check` found, of several runs with its name."""
    return [
        replace(mark, words=f"{story.name}: {mark.words}") if len(stories) > 1 else mark
        for story in stories
        for mark in (*story.marks, *_found(story))
    ]


def _found(story: Story) -> Iterator[Mark]:
    answer = story.last_answer("check")
    by_step: dict[int, list[str]] = {}
    for item in findings_in(answer or {}):
        step = item.get("step")
        if item.get("severity") in ("error", "warning") and type(step) is int and 0 < step <= story.num_steps:
            by_step.setdefault(step, []).append(f"{item.get('code', '')} {item.get('message', '')}".strip())
    for step, words in sorted(by_step.items()):
        yield Mark(step=step, kind="finding", words=f"step {step:,}: {'; '.join(words[:3])}", time_s=0.0)


def _optimisation(stories: Sequence[Story]) -> Section | None:
    names = list(dict.fromkeys(name for story in stories for name in story.values))
    rates = [name for name in names if name.split(".")[0] == _RATE]
    drawn = [
        charts.curves(
            "Learning rate" + name.removeprefix(_RATE).replace(".", ", optimizer "),
            _named(stories, _extended(name), name="learning rate"),
            is_stepped=True,
        )
        for name in rates
    ]
    drawn.append(
        charts.curves(
            "Gradient norm before clipping",
            _named(stories, _of(_NORM), name="each step"),
            is_smoothed=True,
        )
    )
    titles = {
        _LOSS_SCALE: "Loss scale",
        "skipped": "Steps without an update",
        "nonfinite": "Steps skipped on the device",
    }
    for name, title in titles.items():
        drawn.append(charts.curves(title, _named(stories, _of(name), name=title.lower())))
    return _section("optimisation", "Learning rate and gradients", drawn)


def _logged(stories: Sequence[Story]) -> Section | None:
    house = {_MEMORY, _NORM, _LOSS_SCALE, "skipped", "nonfinite"}
    names = [
        name
        for name in dict.fromkeys(name for story in stories for name in story.values)
        if name not in house and name.split(".")[0] != _RATE and not (len(stories) == 1 and _is_loss(name))
    ]
    drawn = [charts.curves(name, _named(stories, _of(name), name=name)) for name in names[:_MAX_CHARTS]]
    return _section("values", "Logged values", drawn, after=sections.logged(stories) if names else None)


def _evaluations(stories: Sequence[Story]) -> Section | None:
    found = {story.name: measures.evaluation_series(story) for story in stories}
    long = [name for by_name in found.values() for name, series in by_name.items() if len(series) > 1]
    names = [name for name in dict.fromkeys(long) if len(stories) > 1 or not _is_loss(name)][:_MAX_CHARTS]
    drawn = [
        charts.curves(name, _named(stories, lambda story, key=name: found[story.name].get(key), name=name))  # type: ignore[misc]
        for name in names
    ]
    for story in stories:
        prefix = f"{story.name}: " if len(stories) > 1 else ""
        drawn += [charts.matrix(prefix + name, rows) for name, rows in measures.matrices(story).items()]
    items = [(story, item) for story in stories for item in story.evaluations]
    if not items:
        return None
    rows = [
        (*((story.name,) if len(stories) > 1 else ()), item.name, f"{item.cursor:,}", _value(item.value))
        for story, item in items
    ]
    head = (*(("run",) if len(stories) > 1 else ()), "evaluation", "after steps", "value")
    listed = sections.folded("All evaluations", table(head, rows, label="Evaluations"), num=len(rows))
    return _section("evaluations", "Evaluations", drawn, after=listed)


def _value(value: object) -> str:
    text = plain(value) if isinstance(value, int | float) else str(value)
    return text if len(text) <= _MAX_VALUE else text[:_MAX_VALUE] + "…"


def _speed(stories: Sequence[Story]) -> Section | None:
    rates = _named(stories, measures.speed, name="steps/s")
    shares = {story.name: measures.profile(story) or measures.time_shares(story) for story in stories}
    shares = {name: row for name, row in shares.items() if row}
    drawn = [
        charts.curves("Steps per second", rates, marks=_marks(stories), is_smoothed=True, has_zero=True),
        charts.shares("Where a step's time goes", shares, unit="share of a step") if shares else None,
        _memory(stories),
    ]
    return _section("speed", "Speed and memory", drawn)


def _memory(stories: Sequence[Story]) -> Chart | None:
    def pick(story: Story) -> Series | None:
        series = _extended(_MEMORY)(story)
        return None if series is None else Series(steps=series.steps, values=series.values / _MB)

    return charts.curves(
        "Peak memory", _named(stories, pick, name="MB"), unit="MB", is_stepped=True, has_zero=True
    )


def _overview(stories: Sequence[Story]) -> Section:
    rows = [
        (
            tag("strong", story.name),
            f"{story.num_steps:,}",
            plain(float(story.loss.values[-1])) if len(story.loss) else "",
            plain(float(story.loss.finite.values.min())) if len(story.loss.finite) else "",
            duration(float(story.seconds[-1])) if len(story.seconds) else "",
            _peak(story),
            plain(story.lives[-1].processes) if story.lives else "",
            _likeness(stories[0], story) if story is not stories[0] else "",
        )
        for story in stories
    ]
    head = (
        "run",
        "steps",
        "last loss",
        "lowest",
        "time",
        "memory",
        "processes",
        f"compared with {stories[0].name}",
    )
    return Section(key="runs", title="Runs", body=table(head, rows, label="Runs side by side"))


def _peak(story: Story) -> str:
    series = story.values.get(_MEMORY)
    return size(float(series.finite.values.max())) if series is not None and len(series.finite) else ""


def _likeness(one: Story, other: Story) -> Markup:
    found = measures.compare(one, other)
    parts: list[object] = []
    if found.snapshot_step is not None:
        words = "same" if found.is_same_snapshot else "different"
        tone = "good" if found.is_same_snapshot else "bad"
        parts += [
            sections.badge(words, tone=tone),
            f" tensors of the snapshot at step {found.snapshot_step:,}; ",
        ]
    if not found.num_common:
        parts.append("no step in common")
    elif found.first_difference is None:
        parts += [sections.badge("same", tone="good"), f" losses of {count(found.num_common, 'step')}"]
    else:
        first, second = found.losses or (np.nan, np.nan)
        words = f" losses from step {found.first_difference:,} on: {first!r} and {second!r}"
        parts += [sections.badge("different", tone="bad"), words]
    return join(parts)


def _differences(stories: Sequence[Story]) -> Section:
    rows = [
        (part, tag("code", name), *values)
        for part in ("recipe", "fingerprint")
        for name, values in measures.differing(stories, part).items()
    ]
    if not rows:
        body = tag("p", "Nothing that the record knows: recipe and machine are the same.", class_="lead")
    else:
        head = ("part", "field", *(story.name for story in stories))
        body = table(head, rows, label="What differs in recipe and fingerprint")
    return Section(key="differences", title="What differs", body=body)
