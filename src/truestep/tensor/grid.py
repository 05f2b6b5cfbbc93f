"""A tensor as a grid of cells: rows and columns are its last two axes, blocks of them the two before.

Owns where each shown element of a shape goes, and the arrows along the axes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from truestep.tensor.canvas import GREY, Arrow, Canvas, Words
from truestep.tensor.cells import MAX_AXIS, shown_axes

WIDTH, HEIGHT = 0.5, 0.4
"""Of a cell, in inches."""
_BETWEEN = 0.22
_ABOVE, _BESIDE = 0.26, 0.26
"""Room for one arrow with its words above a grid, and to the left of it."""


@dataclass(frozen=True, kw_only=True)
class Slot:
    """Where an element goes, counted from the grid's corner; no index where elements are left out."""

    x: float
    y: float
    index: tuple[int, ...] | None


@dataclass(frozen=True)
class Grid:
    """The shown elements of a shape of at most four axes, laid out."""

    shape: tuple[int, ...]

    @property
    def _axes(self) -> list[list[int | None]]:
        missing: list[list[int | None]] = [[0]] * (4 - len(self.shape))
        return missing + shown_axes(self.shape)

    @property
    def _is_wrapped(self) -> bool:
        return len(self.shape) == 1 and len(self._axes[3]) > MAX_AXIS

    def slots(self) -> Iterator[Slot]:
        """Yield the place of every shown element, and of the marks for those left out."""
        down, across, rows, columns = self._axes
        block = len(columns) * WIDTH + _BETWEEN, len(rows) * HEIGHT + _BETWEEN
        for (i, a), (j, b), (r, c), (s, d) in product(
            *(enumerate(axis) for axis in (down, across, rows, columns))
        ):
            index = [at for at in (a, b, c, d)[4 - len(self.shape) :] if at is not None]
            line, column = divmod(s, MAX_AXIS) if self._is_wrapped else (r, s)
            x, y = j * block[0] + column * WIDTH, i * block[1] + line * HEIGHT
            yield Slot(x=x, y=y, index=tuple(index) if len(index) == len(self.shape) else None)

    @property
    def size(self) -> tuple[float, float]:
        """Width and height in inches."""
        slots = list(self.slots())
        return max(slot.x for slot in slots) + WIDTH, max(slot.y for slot in slots) + HEIGHT

    @property
    def corner(self) -> tuple[float, float]:
        """How much room the arrows need to the left of the grid and above it."""
        long = [size > 1 for size in (1,) * (4 - len(self.shape)) + self.shape]
        return (long[0] + long[2]) * _BESIDE, (long[1] + long[3]) * _ABOVE


def draw_arrows(canvas: Canvas, grid: Grid, *, at: tuple[float, float], labels: Sequence[str]) -> None:
    """Draw an arrow with its label along every axis longer than one; `at` is the corner of the cells."""
    width, height = grid.size
    (down, across, _, _), size = grid._axes, len(grid.shape)
    block = (width + _BETWEEN) / len(across) - _BETWEEN, (height + _BETWEEN) / len(down) - _BETWEEN
    x, y = at
    has_columns, has_rows = size >= 1 and grid.shape[-1] > 1, size >= 2 and grid.shape[-2] > 1
    for place, label in enumerate(labels, start=4 - size):
        if grid.shape[place - (4 - size)] == 1:
            continue
        if place in (1, 3):
            reach = block[0] if place == 3 else width
            level = y - 0.08 - (_ABOVE if place == 1 and has_columns else 0)
            canvas.add(Arrow(start=(x, level), end=(x + reach, level)))
            canvas.add(Words(x=x, y=level - 0.1, text=label, size=8, colour=GREY))
        else:
            reach = block[1] if place == 2 else height
            level = x - 0.08 - (_BESIDE if place == 0 and has_rows else 0)
            canvas.add(Arrow(start=(level, y), end=(level, y + reach)))
            canvas.add(
                Words(
                    x=level - 0.1,
                    y=y + reach / 2,
                    text=label,
                    size=8,
                    colour=GREY,
                    align="center",
                    is_upward=True,
                )
            )
