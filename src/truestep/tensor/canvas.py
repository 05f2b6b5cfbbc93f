"""A sheet to draw cells on, measured in inches from its upper left corner; it becomes a `Picture`.

Owns boxes, words and arrows and how large the whole is. What they mean is up to those who draw.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from truestep.picture import INK, Picture

GREY, PALE, WARNING = "#6e7781", "#eaeef2", "#cf222e"
_MARGIN = 0.2
_POINTS_PER_INCH = 72
_LETTER = {"sans": 0.56, "mono": 0.602}
"""How wide a letter is, as a part of its size: an estimate, so that no font is needed to lay out a sheet."""


def width_of(words: str, size: float, *, font: str = "sans") -> float:
    """Return about how many inches wide `words` are at a size in points."""
    return len(words) * _LETTER[font] * size / _POINTS_PER_INCH


@dataclass(frozen=True, kw_only=True)
class Box:
    """A filled rectangle."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    edge: str = "#ffffff"
    line: float = 1.0
    is_dashed: bool = False


@dataclass(frozen=True, kw_only=True)
class Words:
    """A line of text; `x` is its left end, middle or right end by `align`, `y` its middle."""

    x: float
    y: float
    text: str
    size: float = 10
    colour: str = INK
    align: str = "left"
    font: str = "sans"
    is_bold: bool = False
    is_upward: bool = False

    @property
    def span(self) -> tuple[float, float]:
        """Where it begins and ends from left to right."""
        height = self.size / _POINTS_PER_INCH
        width = height if self.is_upward else width_of(self.text, self.size, font=self.font)
        start = self.x - {"left": 0.0, "center": width / 2, "right": width}[self.align]
        return start, start + width


@dataclass(frozen=True, kw_only=True)
class Arrow:
    """A straight arrow."""

    start: tuple[float, float]
    end: tuple[float, float]
    colour: str = GREY


@dataclass
class Canvas:
    """What is on the sheet, in the order in which it is drawn."""

    items: list[Box | Words | Arrow] = field(default_factory=list)

    def add(self, *items: Box | Words | Arrow) -> None:
        """Put things on top of what is there."""
        self.items += items

    def fit(self, text: str, *, box: Box, size: float = 10, colour: str = INK) -> None:
        """Write into the middle of a box, smaller if it would not fit."""
        widest = box.width * 0.9
        size = min(size, size * widest / max(width_of(text, size), 1e-9))
        x, y = box.x + box.width / 2, box.y + box.height / 2
        self.add(Words(x=x, y=y, text=text, size=size, colour=colour, align="center"))

    def moved(self, x: float, y: float) -> Iterator[Box | Words | Arrow]:
        """Yield everything on the sheet, moved to the right and down."""
        for item in self.items:
            if isinstance(item, Arrow):
                start, end = item.start, item.end
                yield replace(item, start=(start[0] + x, start[1] + y), end=(end[0] + x, end[1] + y))
            else:
                yield replace(item, x=item.x + x, y=item.y + y)

    @property
    def right(self) -> float:
        """The right end of everything on the sheet."""
        return max((_right_of(item) for item in self.items), default=0.0)

    @property
    def bottom(self) -> float:
        """The lower end of everything on the sheet."""
        return max((_bottom_of(item) for item in self.items), default=0.0)

    def picture(self) -> Picture:
        """Draw the sheet with a margin around it."""
        width, height = self.right + 2 * _MARGIN, self.bottom + 2 * _MARGIN
        picture = Picture(width=width, height=height)
        with picture.drawing() as figure:
            figure.set_layout_engine("none")  # everything has its place already
            axes = figure.add_axes((0, 0, 1, 1))
            axes.set_axis_off()
            axes.set_xlim(-_MARGIN, width - _MARGIN)
            axes.set_ylim(height - _MARGIN, -_MARGIN)
            for order, item in enumerate(self.items):
                _draw(axes, item, order)
        return picture


def _right_of(item: Box | Words | Arrow) -> float:
    if isinstance(item, Box):
        return item.x + item.width
    if isinstance(item, Words):
        return item.span[1]
    return max(item.start[0], item.end[0])


def _bottom_of(item: Box | Words | Arrow) -> float:
    if isinstance(item, Box):
        return item.y + item.height
    if isinstance(item, Words):
        return item.y + item.size / _POINTS_PER_INCH / 2
    return max(item.start[1], item.end[1])


def _draw(axes: Any, item: Box | Words | Arrow, order: int) -> None:
    if isinstance(item, Box):
        left, right, top, low = item.x, item.x + item.width, item.y, item.y + item.height
        axes.fill(
            [left, right, right, left],
            [top, top, low, low],
            facecolor=item.fill,
            edgecolor=item.edge,
            linewidth=item.line,
            linestyle=(0, (3, 2)) if item.is_dashed else "solid",
            zorder=order,
        )
    elif isinstance(item, Words):
        axes.text(
            item.x,
            item.y,
            item.text,
            fontsize=item.size,
            color=item.colour,
            ha=item.align,
            va="center_baseline" if not item.is_upward else "center",
            rotation=90 if item.is_upward else 0,
            family="DejaVu Sans Mono" if item.font == "mono" else "DejaVu Sans",
            weight="bold" if item.is_bold else "normal",
            zorder=order,
            parse_math=False,
        )
    else:
        look = {"arrowstyle": "-|>", "color": item.colour, "shrinkA": 0, "shrinkB": 0, "linewidth": 1.2}
        axes.annotate("", xy=item.end, xytext=item.start, arrowprops=look, zorder=order)
