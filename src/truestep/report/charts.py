"""Charts of a report, drawn here: curves over steps as inline SVG, shares as tables.

Owns scales, curves and marks. Colours are names of the page's own, so that light and dark follow the reader.
Labels stand beside the SVG, not in it: it is stretched to the page's width, and they are not.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from truestep.report.markup import Markup, join, table, tag
from truestep.report.numerals import count
from truestep.report.runs import Mark
from truestep.report.thin import Series, smooth, thin

NUM_COLOURS = 8
REST = "everything else"
"""The name of the remaining part of a whole."""
_FAR = 400
"""Values that are farther apart than by this factor are drawn on a logarithmic scale."""
_MAX_DRAWN = 1e300
"""Differences of larger ones would overflow."""
_MAX_POINTS = 1200
_SIDE = 1000
"""Of the SVG in its own units."""
_SIGNS = {
    "resume": ("resumed", "▶", "var(--good)"),
    "kill": ("killed", "✕", "var(--bad)"),
    "stop": ("stopped", "■", "var(--warn)"),
    "processes": ("number of processes changed", "◆", "var(--series-4)"),
    "lineage": ("lineage break", "★", "var(--warn)"),
    "damage": ("damaged snapshot skipped", "▼", "var(--warn)"),
    "save-failed": ("snapshot not written", "▽", "var(--warn)"),
    "finding": ("found by check", "▲", "var(--bad)"),
}
_MAX_MARKS = 200
"""Of one kind in one chart; the page's table has all of them."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart for the page, and in words what it shows. One of a value that never changes is the words."""

    title: str
    words: str
    drawing: Markup | None = None


@dataclass(frozen=True, kw_only=True)
class Scale:
    """From numbers to places between 0 and 1, with the numbers that are written beside them."""

    low: float
    high: float
    is_log: bool = False

    def place(self, value: float) -> float:
        """Return the place of a number."""
        value = math.log10(max(value, 5e-324)) if self.is_log else min(max(value, -_MAX_DRAWN), _MAX_DRAWN)
        return (value - self.low) / (self.high - self.low)

    @property
    def ticks(self) -> list[float]:
        """Round numbers inside, about five."""
        if self.is_log:
            every = max(1, round((self.high - self.low) / 5))
            return [
                float(f"1e{power}") for power in range(math.ceil(self.low), math.floor(self.high) + 1, every)
            ]
        rough = self.high / 6 - self.low / 6
        if rough < 1e-300:
            return [self.low, self.high]
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next((unit * times for times in (1, 2, 5) if unit * times >= rough), 10 * unit)
        first = math.ceil(self.low / step)
        return [number * step for number in range(first, first + 12) if number * step <= self.high]


def colour(index: int) -> str:
    """Return the colour of the n-th thing."""
    return f"var(--series-{index % NUM_COLOURS + 1})"


def curves(
    title: str,
    named: Sequence[tuple[str, Series]],
    *,
    unit: str = "",
    marks: Sequence[Mark] = (),
    has_zero: bool = False,
    may_log: bool = False,
    is_smoothed: bool = False,
    is_stepped: bool = False,
) -> Chart | None:
    """Draw series over steps, and marks for what happened; None if there is no number to draw."""
    rows = [(colour(index), *pair) for index, pair in enumerate(named) if len(pair[1].finite)]
    if not rows:
        return None
    lowest = min(float(series.finite.values.min()) for _, _, series in rows)
    highest = max(float(series.finite.values.max()) for _, _, series in rows)
    if lowest == highest:
        return Chart(title=title, words=f"{lowest:.4g} {unit}".strip() + " at every step.")
    across = Scale(low=0, high=max(1, *(int(series.steps[-1]) for _, _, series in rows)))
    up = _values_scale(lowest, highest, has_zero=has_zero, may_log=may_log)
    parts: list[Markup] = []
    for shade, _, series in rows:
        has_mean = is_smoothed and len(series) >= 100
        points = thin(series, max_points=_MAX_POINTS)
        parts.append(_curve(points, across, up, shade=shade, is_faint=has_mean, is_stepped=is_stepped))
        if has_mean:
            parts.append(_curve(smooth(series)[0], across, up, shade=shade))
    signs = {kind: [mark for mark in marks if mark.kind == kind][:_MAX_MARKS] for kind in _SIGNS}
    signs = {kind: found for kind, found in signs.items() if found}
    plot = _plot(across, up, [*_lines(signs, across), *parts], signs=_signs(signs, across), unit=unit)
    words = _words(title, rows[0][2]) if len(named) == 1 else " ".join(_short(*row[1:]) for row in rows[:8])
    num_bad = sum(len(series) - len(series.finite) for _, _, series in rows)
    words += f" Not a number at {count(num_bad, 'step')}." if num_bad else ""
    return Chart(title=title, words=words, drawing=join([_legend(rows, signs), plot]))


def _values_scale(lowest: float, highest: float, *, has_zero: bool, may_log: bool) -> Scale:
    if may_log and lowest > 0 and highest / _FAR > lowest:
        return Scale(low=math.log10(lowest) - 0.1, high=math.log10(highest) + 0.1, is_log=True)
    low, high = max(lowest, -_MAX_DRAWN), min(highest, _MAX_DRAWN)
    if has_zero and low > 0:
        return Scale(low=0.0, high=1.05 * high)
    room = high / 20 - low / 20
    return Scale(low=low - room, high=max(high + room, math.nextafter(high, math.inf)))


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


def _curve(
    series: Series, across: Scale, up: Scale, *, shade: str, is_faint: bool = False, is_stepped: bool = False
) -> Markup:
    """Return one path; it is interrupted where a value is no number, and a point alone is a dot."""
    path: list[str] = []
    is_open = False
    for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True):
        if not math.isfinite(value):
            is_open = False
            continue
        x, y = _SIDE * across.place(step), _SIDE * (1 - up.place(value))
        if not is_open:
            path.append(f"M{x:.1f} {y:.1f}h0")
        else:
            path.append(f"H{x:.1f}V{y:.1f}" if is_stepped else f"L{x:.1f} {y:.1f}")
        is_open = True
    kind = "faint" if is_faint else "few" if len(series) <= 40 else None
    return tag("path", d="".join(path), style=f"stroke:{shade}", class_=kind)


def _plot(across: Scale, up: Scale, parts: Sequence[Markup], *, signs: Sequence[Markup], unit: str) -> Markup:
    grid, labels = [], []
    for tick in up.ticks:
        place = up.place(tick)
        grid.append(tag("path", d=f"M0 {_SIDE * (1 - place):.1f}H{_SIDE}", class_="grid"))
        labels.append(tag("span", f"{tick:.6g} {unit}", class_="y", style=f"bottom:{100 * place:.2f}%"))
    for tick in across.ticks:
        if tick == int(tick):
            style = f"left:{100 * across.place(tick):.2f}%"
            labels.append(tag("span", f"{int(tick):,} ", class_="x", style=style))
    drawn = tag("svg", *grid, *parts, viewBox=f"0 0 {_SIDE} {_SIDE}", preserveAspectRatio="none")
    return tag("div", drawn, *labels, *signs, class_="plot")


def _legend(rows: Sequence[tuple[str, str, Series]], signs: Mapping[str, Sequence[Mark]]) -> Markup | None:
    if len(rows) == 1 and not signs:
        return None
    shown = [(shade, "━", name) for shade, name, _ in rows]
    shown += [(shade, sign, name) for name, sign, shade in map(_SIGNS.__getitem__, signs)]
    items = [tag("li", tag("span", sign, style=f"color:{shade}"), f" {name}") for shade, sign, name in shown]
    return tag("ul", *items, class_="legend")


def _lines(signs: Mapping[str, Sequence[Mark]], across: Scale) -> Iterator[Markup]:
    for kind, marks in signs.items():
        for step in sorted({mark.step for mark in marks}):
            x = _SIDE * min(across.place(step), 1)
            yield tag("path", d=f"M{x:.1f} 0V{_SIDE}", class_="mark", style=f"stroke:{_SIGNS[kind][2]}")


def _signs(signs: Mapping[str, Sequence[Mark]], across: Scale) -> list[Markup]:
    """Return the signs on top of the lines, a row for each kind."""
    return [
        tag(
            "span",
            _SIGNS[kind][1],
            class_="sign",
            title=mark.words,
            style=f"left:{100 * min(across.place(mark.step), 1):.2f}%;top:{row}em;color:{_SIGNS[kind][2]}",
        )
        for row, (kind, marks) in enumerate(signs.items())
        for mark in marks
    ]


def shares(title: str, parts: Mapping[str, float], *, unit: str) -> Chart:
    """Return the parts of a whole as a table, a row for each."""
    rows = [(part, _bar(share)) for part, share in parts.items()]
    return Chart(title=title, words="", drawing=table(("part", unit), rows, label=title))


def _bar(share: float) -> Markup:
    return tag("span", f"{share:.1%}", class_="bar", style=f"--share:{100 * min(max(share, 0.0), 1.0):.1f}%")
