"""Charts as plain data in plotly's words, one or several runs in each.

Owns what is drawn: curves, marks, bars, tables of colours. Colours are names of the page's own, so that light
and dark follow the reader. Drawing itself happens in the browser.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from truestep.report.markup import chart_text
from truestep.report.runs import Story
from truestep.report.thin import Series, smooth, thin

NUM_COLOURS = 8
REST = "everything else"
"""The part of a whole that nobody asked about: drawn quietly."""
_FAR = 20
_MAX_DRAWN = 1e300
"""Larger ones would overflow in the browser while it looks for the axis' range."""
_SIGNS = {
    "resume": ("resumed", "triangle-right", "var(--good)"),
    "kill": ("killed", "x", "var(--bad)"),
    "stop": ("stopped", "octagon", "var(--warn)"),
    "processes": ("number of processes changed", "diamond", "var(--series-4)"),
    "lineage": ("lineage break", "star", "var(--warn)"),
    "damage": ("damaged snapshot skipped", "square", "var(--warn)"),
    "save-failed": ("snapshot not written", "square-open", "var(--warn)"),
}
_MAX_BANDS = 600
_DWARFED = 8
_MAX_MARKS = 200
"""Of one kind in one chart; the page's table has all of them."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart for the page: traces and layout, and in words what it shows."""

    title: str
    words: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any] = field(default_factory=dict)
    height: int = 300
    can_log: bool = False
    """Whether a logarithmic scale makes sense: all values are above zero, and far apart."""
    is_log: bool = False
    """Whether it is drawn so at first."""
    is_square: bool = False


def colour(index: int) -> str:
    """Return the colour of the n-th thing."""
    return f"var(--series-{index % NUM_COLOURS + 1})"


def curves(
    title: str,
    named: Sequence[tuple[str, Series]],
    *,
    unit: str = "",
    stories: Sequence[Story] = (),
    has_zero: bool = False,
    is_smoothed: bool = False,
    is_stepped: bool = False,
    height: int = 300,
) -> Chart | None:
    """Draw series over steps, and what happened in the runs; None if there is no number to draw.

    A tall chart explains its signs, and is drawn on a logarithmic scale at first if values are far apart.
    """
    shown = [(name, series) for name, series in named if len(series.finite)]
    if not shown:
        return None
    traces: list[dict[str, Any]] = []
    for index, (name, series) in enumerate(named):
        if not len(series.finite):
            continue
        has_mean = is_smoothed and len(series) >= 100
        trace = _curve(name, series, colour=colour(index), is_faint=has_mean, is_stepped=is_stepped)
        traces.append(trace)
        if has_mean:
            traces.append(_mean(name, series, colour=colour(index), is_alone=len(named) == 1))
            if len(named) > 1:  # one entry for both in the legend
                trace |= {"legendgroup": index, "showlegend": False}
                traces[-1]["legendgroup"] = index
    traces += _nonfinite(shown)
    is_tall = height > 300
    marks = _marks(stories, is_named=is_tall)
    axis: dict[str, Any] = {"rangemode": "tozero"} if has_zero else {}
    layout: dict[str, Any] = {"yaxis": axis | ({"title": {"text": unit}} if unit else {})}
    layout["showlegend"] = len(named) > 1 or is_tall or is_smoothed
    layout["xaxis"] = {"range": _range(shown)}
    if marks:
        layout["yaxis2"] = {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True}
    layout["shapes"] = _lines(stories)
    lowest = min(float(series.finite.values.min()) for _, series in shown)
    highest = max(float(series.finite.values.max()) for _, series in shown)
    if highest and highest - lowest <= 1e-6 * abs(highest):  # plotly's own axis would be from -1 to 1
        layout["yaxis"]["range"] = sorted([0.0, 2 * min(max(highest, -_MAX_DRAWN), _MAX_DRAWN)])
    can_log = lowest > 0 and highest > _FAR * lowest
    return Chart(
        title=title,
        words=_words(title, shown[0][1])
        if len(named) == 1
        else " ".join(_short(*pair) for pair in shown[:8]),
        traces=[*traces, *marks],
        layout=layout,
        height=height,
        can_log=can_log,
        is_log=is_tall and can_log and highest > _FAR**2 * lowest,
    )


def _range(named: Sequence[tuple[str, Series]]) -> list[float]:
    """The steps from the first to the last, and a little room for the signs."""
    first = min(0, *(int(series.steps[0]) for _, series in named))
    last = max(int(series.steps[-1]) for _, series in named)
    room = max(1.0, (last - first) / 100)
    return [first - room, last + room]


def _words(name: str, series: Series) -> str:
    finite = series.finite
    low, high = int(finite.values.argmin()), int(finite.values.argmax())
    return (
        f"{name}: {finite.values[0]:.4g} at step {finite.steps[0]:,}, {finite.values[-1]:.4g} at step "
        f"{finite.steps[-1]:,}; lowest {finite.values[low]:.4g} at step {finite.steps[low]:,}, highest "
        f"{finite.values[high]:.4g} at step {finite.steps[high]:,}."
    )


def _short(name: str, series: Series) -> str:
    finite = series.finite
    low = int(finite.values.argmin())
    lowest = f"lowest {finite.values[low]:.4g} at step {finite.steps[low]:,}"
    return f"{name}: last {finite.values[-1]:.4g}, {lowest}."


def points(series: Series) -> tuple[list[int], list[float | None]]:
    """Return x and y for JSON; what is no number is a gap."""
    values: list[float | None] = [
        float(f"{min(max(value, -_MAX_DRAWN), _MAX_DRAWN):.6g}") if np.isfinite(value) else None
        for value in series.values.tolist()
    ]
    return series.steps.tolist(), values


def _curve(name: str, series: Series, *, colour: str, is_faint: bool, is_stepped: bool) -> dict[str, Any]:
    x, y = points(thin(series))
    line: dict[str, Any] = {"color": colour, "width": 1 if is_faint else 1.8}
    if is_stepped:
        line["shape"] = "hv"
    return {
        "type": "scatter",
        "mode": "lines" if len(x) > 60 else "lines+markers",
        "name": chart_text(name),
        "x": x,
        "y": y,
        "line": line,
        "marker": {"size": 5, "color": colour},
        "opacity": 0.35 if is_faint else 1,
        "connectgaps": False,
        "hovertemplate": "%{y:.5g}",
    }


def _mean(name: str, series: Series, *, colour: str, is_alone: bool) -> dict[str, Any]:
    mean, width = smooth(series)
    x, y = points(mean)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": f"mean of {width:,} steps" if is_alone else chart_text(name),
        "x": x,
        "y": y,
        "line": {"color": colour, "width": 2.4},
        "hovertemplate": "%{y:.5g}",
    }


def _nonfinite(named: Sequence[tuple[str, Series]]) -> list[dict[str, Any]]:
    x: list[int] = []
    y: list[float] = []
    num = 0
    for _, series in named:
        is_bad = ~np.isfinite(series.values)
        num += int(is_bad.sum())
        bad = Series(steps=series.steps[is_bad], values=np.zeros(int(is_bad.sum())))
        x += thin(bad, max_points=_MAX_MARKS).steps.tolist()
        y += [float(min(series.finite.values.max(), _MAX_DRAWN))] * (len(x) - len(y))
    if not x:
        return []
    sign = {"symbol": "x-thin", "size": 9, "color": "var(--bad)", "line": {"width": 2, "color": "var(--bad)"}}
    return [_dots(f"not a number at {num:,} steps", x, y, sign)]


def _dots(name: str, x: Sequence[Any], y: Sequence[Any], marker: dict[str, Any]) -> dict[str, Any]:
    hover = "step %{x:,}"
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": x,
        "y": y,
        "marker": marker,
        "hovertemplate": hover,
    }


def _marks(stories: Sequence[Story], *, is_named: bool) -> list[dict[str, Any]]:
    """Return the signs on top of a chart, one row for each kind."""
    traces: list[dict[str, Any]] = []
    for kind, (name, symbol, shade) in _SIGNS.items():
        found = [
            (mark.step, chart_text(_mark_text(story, mark.words, len(stories)), max_length=120))
            for story in stories
            for mark in story.marks
            if mark.kind == kind
        ][:_MAX_MARKS]
        if found:
            height = 0.985 - 0.055 * len(traces)
            marker = {"symbol": symbol, "size": 10, "color": shade}
            trace = _dots(name, [step for step, _ in found], [height] * len(found), marker)
            trace |= {"text": [words for _, words in found], "hovertemplate": "%{text}<extra></extra>"}
            traces.append(trace | {"yaxis": "y2", "cliponaxis": False, "showlegend": is_named})
    return traces


def _mark_text(story: Story, words: str, num_stories: int) -> str:
    return f"{story.name}: {words}" if num_stories > 1 else words


def _lines(stories: Sequence[Story]) -> list[dict[str, Any]]:
    places = {(mark.step, mark.kind) for story in stories for mark in story.marks if mark.kind in _SIGNS}
    return [
        {
            "type": "line",
            "xref": "x",
            "yref": "paper",
            "x0": step,
            "x1": step,
            "y0": 0,
            "y1": 1,
            "layer": "below",
            "line": {"color": _SIGNS[kind][2], "width": 1, "dash": "dot"},
        }
        for step, kind in sorted(places)[:_MAX_MARKS]
    ]


def bands(title: str, columns: Sequence[Series], *, colour: str) -> Chart | None:
    """Draw how values were spread: lowest, 5, 25, 50, 75 and 95 %, highest; None if there is no number."""
    kept = _kept_steps([columns[index] for index in (0, 3, 6)])
    thinned = [Series(steps=column.steps[kept], values=column.values[kept]) for column in columns]
    if not len(columns[3].finite):
        return None
    low, *quantiles, high = thinned
    median = _curve("median", quantiles[2], colour=colour, is_faint=False, is_stepped=False)
    median["mode"] = "lines" if len(kept) > 1 else "markers"
    halves = zip(*(points(quantiles[index])[1] for index in (1, 3, 0, 4)), strict=True)
    median["customdata"] = list(halves)
    median["hovertemplate"] = (
        "%{y:.4g}<br>25 to 75 %: %{customdata[0]:.4g} to %{customdata[1]:.4g}"
        "<br>5 to 95 %: %{customdata[2]:.4g} to %{customdata[3]:.4g}"
    )
    edges = [_edge("lowest", low, colour=colour), _edge("highest", high, colour=colour)]
    words = _spread_words(columns)
    if _is_dwarfed(columns):
        edges = [trace | {"visible": "legendonly"} for trace in edges]
        words += " Both are far out: choose “range” in the legend to see them."
    traces = [
        _band("5 to 95 %", quantiles[0], quantiles[4], colour=colour, opacity=0.18),
        _band("25 to 75 %", quantiles[1], quantiles[3], colour=colour, opacity=0.32),
        median,
        *edges,
        *_nonfinite([("", columns[3])]),
    ]
    layout = {"xaxis": {"range": _range([("", columns[0])])}, "showlegend": True}
    return Chart(title=title, words=words, traces=traces, layout=layout)


def _kept_steps(columns: Sequence[Series]) -> list[int]:
    """Which rows are drawn: those that any of the columns needs."""
    steps = {step for column in columns for step in thin(column, max_points=_MAX_BANDS).steps.tolist()}
    return [index for index, step in enumerate(columns[0].steps.tolist()) if step in steps]


def _band(name: str, low: Series, high: Series, *, colour: str, opacity: float) -> dict[str, Any]:
    """The area between two curves; one that is interrupted is several areas."""
    x: list[int | None] = []
    y: list[float | None] = []
    is_drawn = np.isfinite(low.values) & np.isfinite(high.values)
    for stretch in np.split(np.arange(len(is_drawn)), np.flatnonzero(~is_drawn)):
        rows = stretch[is_drawn[stretch]]
        if len(rows):
            upper = points(Series(steps=high.steps[rows], values=high.values[rows]))
            lower = points(Series(steps=low.steps[rows], values=low.values[rows]))
            x += [*upper[0], *lower[0][::-1], upper[0][0], None]
            y += [*upper[1], *lower[1][::-1], upper[1][0], None]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": x[:-1],
        "y": y[:-1],
        "fill": "toself",
        "fillcolor": colour,
        "line": {"width": 0, "color": colour},
        "opacity": opacity,
        "hoverinfo": "skip",
    }


def _edge(name: str, series: Series, *, colour: str) -> dict[str, Any]:
    """The lowest or the highest values; both are one entry of the legend."""
    trace = _curve("range", series, colour=colour, is_faint=True, is_stepped=False)
    trace["line"] |= {"dash": "dot"}
    return trace | {
        "mode": "lines" if len(series) > 1 else "markers",
        "opacity": 0.75,
        "legendgroup": "range",
        "showlegend": name == "highest",
        "hovertemplate": f"{name} %{{y:.4g}}<extra></extra>",
    }


def _is_dwarfed(columns: Sequence[Series]) -> bool:
    """Whether the bands would be a thin line beside the lowest and the highest value."""
    low, high = (columns[index].finite.values / _FAR for index in (0, -1))
    inner, outer = (columns[index].finite.values / _FAR for index in (1, -2))
    return float(high.max() - low.min()) > _DWARFED * float(outer.max() - inner.min()) > 0


def _spread_words(columns: Sequence[Series]) -> str:
    low, high, median = (columns[index].finite for index in (0, -1, 3))
    at, top = int(low.values.argmin()), int(high.values.argmax())
    half = f"half of the values from {columns[2].finite.values[-1]:.4g} to {columns[4].finite.values[-1]:.4g}"
    return (
        f"At step {median.steps[-1]:,} the median is {median.values[-1]:.4g}, {half}. Lowest of all "
        f"{low.values[at]:.4g} at step {low.steps[at]:,}, highest {high.values[top]:.4g} at step "
        f"{high.steps[top]:,}."
    )


def bars(title: str, shares: Mapping[str, Mapping[str, float]], *, unit: str) -> Chart:
    """Draw how a whole is made up: a bar for each name, a colour for each part."""
    parts = list(dict.fromkeys(part for row in shares.values() for part in row))
    names = [chart_text(name, max_length=24) for name in shares]
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": chart_text(part),
            "y": names,
            "x": [round(row.get(part, 0.0), 6) for row in shares.values()],
            "marker": {"color": "var(--line)" if part == REST else colour(index)},
            "width": 0.5,
            "hovertemplate": "%{x:.1%}",
        }
        for index, part in enumerate(parts)
    ]
    words = "; ".join(
        f"{name}: " + ", ".join(f"{part} {share:.1%}" for part, share in row.items())
        for name, row in shares.items()
    )
    layout = {
        "barmode": "stack",
        "hovermode": "closest",
        "xaxis": {"tickformat": ".0%", "title": {"text": unit}},
        "yaxis": {"visible": len(names) > 1, "automargin": True},
        "showlegend": True,
        "legend": {"traceorder": "normal"},
    }
    return Chart(title=title, words=words + ".", traces=traces, layout=layout, height=150 + 40 * len(names))


def matrix(title: str, rows: Sequence[Sequence[float]]) -> Chart:
    """Draw a confusion matrix: targets downwards, predictions to the right."""
    labels = [str(index) for index in range(len(rows))]
    total = sum(map(sum, rows))
    right = sum(row[index] for index, row in enumerate(rows))
    trace = {
        "type": "heatmap",
        "z": [list(row) for row in rows],
        "x": labels,
        "y": labels,
        "colorscale": [[0, "var(--panel)"], [1, "var(--series-1)"]],
        "showscale": False,
        "xgap": 2,
        "ygap": 2,
        "texttemplate": "%{z:.3~g}" if len(rows) <= 20 else "",
        "hovertemplate": "target %{y}, predicted %{x}: %{z:,}<extra></extra>",
    }
    layout = {
        "hovermode": "closest",
        "xaxis": {"title": {"text": "predicted"}, "type": "category", "showgrid": False},
        "yaxis": {
            "title": {"text": "target"},
            "type": "category",
            "autorange": "reversed",
            "showgrid": False,
        },
    }
    share = f" {right / total:.2%} on the diagonal." if total else ""
    words = f"{len(rows)} classes, {total:,.6g} samples.{share}"
    return Chart(title=title, words=words, traces=[trace], layout=layout, height=420, is_square=True)
