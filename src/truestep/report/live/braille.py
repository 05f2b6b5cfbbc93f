"""A curve drawn in a terminal with braille signs: eight dots in each character.

Owns the drawing. Which curve, and what stands beside it, is up to `screen`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text

from truestep.report.numerals import number

Points = tuple[Sequence[int], Sequence[float]]
"""Steps, and a finite value for each."""

_BLANK = 0x2800
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""By row and column inside of one sign."""
_LABEL = 9
_LOG_FROM = 30.0
"""A curve whose highest value is so many times its lowest is drawn with logarithms."""
_CURVE, _FAINT = "bold bright_cyan", "bright_black"
"""Where there is a smooth course, the values behind it are faint."""


@dataclass(frozen=True, kw_only=True)
class ChartStyle:
    """How large, in characters; marks are steps with a colour each."""

    width: int
    height: int
    marks: Mapping[int, str]
    may_be_log: bool
    """Whether it is of the kind that falls by powers of ten, as a loss does and a learning rate does not."""


class _Plane:
    """Takes steps and values to dots: column 0 is at the left, row 0 at the top."""

    def __init__(self, points: Points, *, width: int, height: int, may_be_log: bool) -> None:
        steps, values = points
        self.first, self.last = steps[0], max(steps[-1], steps[0] + 1)
        self.width, self.height = width, height
        low, high = min(values), max(values)
        self._is_log = may_be_log and low > 0 and high / low > _LOG_FROM
        self._low, self._high = self._take(low), self._take(high)

    def _take(self, value: float) -> float:
        # Halved: the span of the largest values there are would be infinite.
        return (math.log(value) if self._is_log else value) / 2

    def column(self, step: int, *, num: int) -> int:
        share = (step - self.first) / (self.last - self.first)
        return min(max(round(share * (num - 1)), 0), num - 1)

    def row(self, value: float) -> int:
        span = self._high - self._low
        share = (self._take(value) - self._low) / span if span > 0 else 0.5
        return round((1 - min(max(share, 0.0), 1.0)) * (4 * self.height - 1))

    def value(self, share: float) -> float:
        """The value so far from the top."""
        taken = 2 * (self._low * share + self._high * (1 - share))
        return math.exp(taken) if self._is_log else taken

    def cells(self, points: Points) -> list[list[int]]:
        """Join the points, and return the sign of each character."""
        cells = [[_BLANK] * self.width for _ in range(self.height)]
        before: tuple[int, int] | None = None
        for step, value in zip(*points, strict=True):
            dot = self.column(step, num=2 * self.width), self.row(value)
            for x, y in _line(before or dot, dot):
                cells[y // 4][x // 2] |= _DOTS[y % 4][x % 2]
            before = dot
        return cells


def draw(points: Points, course: Points, *, look: ChartStyle) -> list[Text]:
    """Return the lines of a chart: values at the left, steps and marks below, the course over the points."""
    width, height = max(look.width - _LABEL - 2, 4), max(look.height - 2, 2)
    plane = _Plane(points, width=width, height=height, may_be_log=look.may_be_log)
    under, over = plane.cells(points), plane.cells(course)
    style = _FAINT if course[0] else _CURVE
    places = {
        plane.column(step, num=plane.width): colour
        for step, colour in look.marks.items()
        if plane.first <= step <= plane.last + 1
    }
    lines = []
    for row in range(plane.height):
        line = _label(plane, row)
        for column, (below, above) in enumerate(zip(under[row], over[row], strict=True)):
            if above != _BLANK:
                line.append(chr(above), _CURVE)
            elif column in places:
                line.append("┊", places[column])
            else:
                line.append(" " if below == _BLANK else chr(below), style)
        lines.append(line)
    return [*lines, *_axis(plane, places)]


def _label(plane: _Plane, row: int) -> Text:
    middle = (plane.height - 1) // 2 if plane.height > 6 else 0
    is_labelled = row in (0, middle, plane.height - 1)
    label = number(plane.value(row / (plane.height - 1))) if is_labelled else ""
    return Text().append(f"{label:>{_LABEL}} {'┤' if is_labelled else '│'}", "dim")


def _axis(plane: _Plane, places: Mapping[int, str]) -> list[Text]:
    axis = Text().append(" " * (_LABEL + 1) + "└", "dim")
    for column in range(plane.width):
        axis.append(*(("▲", places[column]) if column in places else ("─", "dim")))
    left, right = f"{plane.first:,}", f"{plane.last:,}"
    middle = "step".center(max(plane.width - len(left) - len(right), 6))
    return [axis, Text(" " * (_LABEL + 2) + left + middle + right, style="dim")]


def _line(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """The dots from one point to another."""
    wide, tall = end[0] - start[0], end[1] - start[1]
    num = max(abs(wide), abs(tall), 1)
    return [(start[0] + round(wide * at / num), start[1] + round(tall * at / num)) for at in range(num + 1)]
