"""Shapes that are broadcast: what each operand is stretched to, drawn beside the result.

Owns this picture alone. Solid cells exist; pale ones are the same cells again.
"""

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from truestep.picture import COLOURS, INK, PAPER
from truestep.tensor.canvas import GREY, WARNING, Box, Canvas, Words, width_of
from truestep.tensor.cells import flat_number, is_drawable, short
from truestep.tensor.facts import Value
from truestep.tensor.grid import HEIGHT, WIDTH, Grid

_SHEET = 10.0
"""How wide a picture becomes before grids go below each other, in inches."""
_HUES = (0.58, 0.07, 0.37, 0.75)
"""Of the operands, near the house's first colours."""
_RESULT = "#f6f8fa"


@dataclass(frozen=True, kw_only=True)
class Side:
    """One operand, or the result: its name, shape, and values in reading order if they are known."""

    name: str
    shape: tuple[int, ...]
    values: tuple[Value, ...] | None = None

    def element(self, index: Sequence[int]) -> int:
        """Return the number of the element that stands at an index of the result."""
        own = index[len(index) - len(self.shape) :]
        at = [0 if size == 1 else place for place, size in zip(own, self.shape, strict=True)]
        return flat_number(at, self.shape)

    def is_original(self, index: Sequence[int]) -> bool:
        """Whether the element at an index of the result stands where it is its own, not repeated, cell."""
        missing = len(index) - len(self.shape)
        own = zip(index[missing:], self.shape, strict=True)
        return not any(index[:missing]) and not any(place > 0 and size == 1 for place, size in own)

    def words(self, index: Sequence[int]) -> str:
        """Return what is written into the cell at an index of the result."""
        number = self.element(index)
        return f"{self.name}{_low(number)}" if self.values is None else short(self.values[number])


def _low(number: int) -> str:
    """Return a number in small figures below the line."""
    return str(number).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))


def _together(sides: Sequence[Side], index: Sequence[int]) -> str:
    """Return which elements meet in the result where its values are not known."""
    return " ".join(f"{side.name}{_low(side.element(index))}" for side in sides)


def draw_sides(
    canvas: Canvas, sides: Sequence[Side], *, result: Side, sign: str = ",", title: str = "", is_warned: bool
) -> None:
    """Draw operands stretched to the result's shape, below what is on the canvas."""
    top = canvas.bottom + 0.55 if canvas.items else 0.0
    if title:
        canvas.add(Words(x=0, y=top + 0.1, text=title, size=11, is_bold=True))
        top += 0.38
    _draw_shapes(canvas, [*sides, result], top=top, is_warned=is_warned)
    if is_warned:
        _draw_warning(canvas, sides, result, top=canvas.bottom + 0.12)
    if not is_drawable(result.shape):
        canvas.add(
            Words(x=0, y=canvas.bottom + 0.25, text="too many dimensions to draw", size=9, colour=GREY)
        )
        return
    x, top = 0.0, canvas.bottom + 0.3
    width, height = Grid(result.shape).size
    for number, side in enumerate([*sides, result]):
        is_result = number == len(sides)
        mark = "" if number == 0 else sign if not is_result else "→" if sign == "," else "="
        if x > 0 and x + width > _SHEET:
            x, top = 0.1, top + height + 0.6
        if mark:
            y = top + 0.28 + height / 2
            canvas.add(Words(x=x - 0.03, y=y, text=mark, size=16, align="center"))
            x += 0.2
        _draw_side(canvas, [*sides, result], number, at=(x, top))
        x += max(width, width_of(_caption(side), 9)) + 0.25


def _caption(side: Side) -> str:
    return f"{side.name} {side.shape}"


def _draw_shapes(canvas: Canvas, sides: Sequence[Side], *, top: float, is_warned: bool) -> None:
    """Write the shapes below each other, aligned at the right; stretched sizes in their operand's colour."""
    result = sides[-1]
    left = max(width_of(side.name, 10, font="mono") for side in sides) + 0.45
    for row, side in enumerate(sides):
        y = top + 0.1 + 0.25 * row
        colour = INK if side is result else COLOURS[row % len(COLOURS)]
        canvas.add(Words(x=0, y=y, text=side.name, size=10, font="mono", is_bold=True, colour=colour))
        missing = len(result.shape) - len(side.shape)
        for axis, size in enumerate(result.shape):
            own = None if axis < missing else side.shape[axis - missing]
            is_stretched = own != size
            words = "" if own is None else str(own)
            if is_stretched:
                words = f"{words or '·'} → {size}"
            if side is result and is_warned:
                colour = WARNING
            canvas.add(
                Words(
                    x=left + axis * 0.8,
                    y=y,
                    text=words,
                    size=10,
                    colour=colour,
                    is_bold=is_stretched,
                    align="center",
                )
            )


def _draw_warning(canvas: Canvas, sides: Sequence[Side], result: Side, *, top: float) -> None:
    shapes = " and ".join(str(side.shape) for side in sides)
    first = f"{shapes} become {result.shape}, and no error is raised: every element meets every other."
    second = "Meant element by element? Give both one shape first, by squeeze(dim) or unsqueeze(dim)."
    for number, words in enumerate((first, second)):
        y = top + 0.1 + 0.2 * number
        canvas.add(Words(x=0, y=y, text=words, size=9.5, colour=WARNING, is_bold=number == 0))


def _tint(hue: float, place: float, *, is_ghost: bool) -> str:
    lightness = 0.66 + 0.14 * place
    parts = colorsys.hls_to_rgb(hue, 0.93 if is_ghost else lightness, 0.75)
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)


def _colour(side: Side, number: int, index: Sequence[int], *, is_ghost: bool = False) -> str:
    place = side.element(index) / max(prod(side.shape) - 1, 1)
    return _tint(_HUES[number % len(_HUES)], place, is_ghost=is_ghost)


def _draw_side(canvas: Canvas, sides: Sequence[Side], number: int, *, at: tuple[float, float]) -> None:
    """Draw an operand as large as the result, repeated cells pale; or the result, striped by its operands."""
    *operands, result = sides
    side = sides[number]
    canvas.add(Words(x=at[0], y=at[1] + 0.1, text=_caption(side), size=9))
    for slot in Grid(result.shape).slots():
        box = Box(x=at[0] + slot.x, y=at[1] + 0.28 + slot.y, width=WIDTH, height=HEIGHT, fill=PAPER)
        if slot.index is None:
            canvas.fit("…", box=box, colour=GREY)
        elif side is result:
            canvas.add(replace(box, fill=_RESULT))
            for place, operand in enumerate(operands):
                # From left to right at the foot of the cell, so that the words stay on one ground.
                band = replace(box, x=box.x + place * WIDTH / len(operands), width=WIDTH / len(operands))
                fill = _colour(operand, place, slot.index)
                canvas.add(replace(band, y=box.y + HEIGHT - 0.12, height=0.12, fill=fill, edge=fill, line=0))
            canvas.add(replace(box, fill="none"))
            words = _together(operands, slot.index) if side.values is None else side.words(slot.index)
            canvas.fit(words, box=replace(box, height=HEIGHT - 0.12))
        else:
            is_ghost = not side.is_original(slot.index)
            fill = _colour(side, number, slot.index, is_ghost=is_ghost)
            edge = _colour(side, number, slot.index) if is_ghost else PAPER
            if is_ghost:
                box = replace(box, x=box.x + 0.02, y=box.y + 0.02, width=WIDTH - 0.04, height=HEIGHT - 0.04)
            canvas.add(replace(box, fill=fill, edge=edge, is_dashed=is_ghost))
            canvas.fit(side.words(slot.index), box=box, colour=GREY if is_ghost else INK)
