"""Pieces of memory as rows of numbered cells, and below each the tensors that lie in it.

Owns this picture alone; equal colour and equal small number mean the same cell.
"""

import colorsys
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from truestep.picture import INK, PAPER
from truestep.tensor.canvas import GREY, PALE, Box, Canvas, Words, width_of
from truestep.tensor.cells import MAX_AXIS, MAX_DIMENSIONS, Cells, is_drawable, value_at
from truestep.tensor.facts import TensorFacts
from truestep.tensor.grid import HEIGHT, WIDTH, Grid, draw_arrows

_STRIP = 0.2
_GAP = 0.35
_SHEET = MAX_AXIS * WIDTH + 1.2
"""How wide a picture becomes before things go below each other, in inches."""
_LONGEST_NAME = 28
_LEGEND = (
    "Equal colour, equal small number: the same cell of memory. Arrows: elements further per step.",
    "Strips: the number of the tensor's element in that cell; grey cells are skipped.",
)


class _Scene(NamedTuple):
    """One piece of memory that is being drawn."""

    canvas: Canvas
    piece: Cells
    colours: dict[int, str]


def draw_pieces(canvas: Canvas, pieces: Sequence[Cells]) -> None:
    """Draw every piece of memory, beside each other and below where the sheet ends."""
    drawn = []
    for number, piece in enumerate(pieces):
        scene = _Scene(Canvas(), piece, _colours(piece, number, len(pieces)))
        heading = _heading(piece, f" {piece.memory.label}" if len(pieces) > 1 else "")
        scene.canvas.add(Words(x=0, y=0.1, text=heading, size=11, is_bold=True))
        if piece.count > 0:
            _draw_rows(scene, top=0.5)
        panels = [_panel(scene, tensor) for tensor in piece.tensors]
        _flow(scene.canvas, panels, top=scene.canvas.bottom + _GAP)
        drawn.append(scene.canvas)
    _flow(canvas, drawn, top=0.0)
    for line, words in enumerate(_LEGEND):
        canvas.add(Words(x=0, y=canvas.bottom + (0.12 if line else 0.4), text=words, size=8, colour=GREY))


def _flow(canvas: Canvas, sheets: Sequence[Canvas], *, top: float) -> None:
    x, y, lowest = 0.0, top, top
    for sheet in sheets:
        if x > 0 and x + sheet.right > _SHEET:
            x, y = 0.0, lowest + _GAP * 1.4
        canvas.add(*sheet.moved(x, y))
        x, lowest = x + sheet.right + _GAP * 1.5, max(lowest, y + sheet.bottom)


def _colours(piece: Cells, number: int, count: int) -> dict[int, str]:
    """Return a colour for each shown cell; pieces share none, so that a copy looks like another thing."""
    cells = [cell for cell in piece.shown() if cell is not None]
    start, length = number / count, 0.86 / count
    colours = {}
    for rank, cell in enumerate(cells):
        hue = (0.55 + start + length * rank / max(len(cells) - 1, 1)) % 1.0
        parts = colorsys.hls_to_rgb(hue, 0.74 + 0.08 * (rank % 2), 0.72)
        colours[cell] = "#" + "".join(f"{round(255 * part):02x}" for part in parts)
    return colours


def _short_name(tensor: TensorFacts) -> str:
    name = " ".join(tensor.name.split())
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def _heading(piece: Cells, label: str) -> str:
    memory = piece.memory
    num_items = memory.num_bytes // memory.item_bytes
    return f"memory{label}: {num_items:,} × {memory.dtype} = {memory.num_bytes:,} bytes"  # noqa: RUF001 - times


def _draw_rows(scene: _Scene, *, top: float) -> None:
    """Draw the cells in rows, and under each row one strip per tensor: which of these cells it shows."""
    piece = scene.piece
    left = max(width_of(_short_name(tensor), 9, font="mono") for tensor in piece.tensors) + 0.12
    values, cells = piece.values(), piece.shown()
    y = top
    for start in range(0, len(cells), MAX_AXIS):
        row = [(left + at * WIDTH, cell) for at, cell in enumerate(cells[start : start + MAX_AXIS])]
        for x, cell in row:
            _draw_cell(scene, cell, at=(x, y), words="…" if cell is None else values.get(cell, ""))
        y += HEIGHT + 0.05
        for tensor in piece.tensors:
            _draw_strip(scene, tensor, row=row, y=y)
            y += _STRIP + 0.03
        y += 0.32


def _draw_cell(scene: _Scene, cell: int | None, *, at: tuple[float, float], words: str) -> None:
    box = Box(x=at[0], y=at[1], width=WIDTH, height=HEIGHT, fill=PAPER)
    if cell is None:
        scene.canvas.fit(words, box=box, colour=GREY)
        return
    is_used = any(scene.piece.elements_in(tensor, cell) for tensor in scene.piece.tensors)
    box = replace(box, fill=scene.colours[cell] if is_used else PALE)
    scene.canvas.add(box)
    scene.canvas.fit(words, box=box, colour=INK if is_used else GREY)
    x, y = box.x + WIDTH / 2, box.y - 0.09
    scene.canvas.add(Words(x=x, y=y, text=str(cell), size=7, colour=GREY, align="center"))


def _draw_strip(scene: _Scene, tensor: TensorFacts, *, row: list[tuple[float, int | None]], y: float) -> None:
    """Draw which cells of a row a tensor shows, with the numbers of its elements there; others are grey."""
    canvas = scene.canvas
    x, middle = row[0][0] - 0.12, y + _STRIP / 2
    canvas.add(Words(x=x, y=middle, text=_short_name(tensor), size=9, align="right", font="mono"))
    for x, cell in row:
        if cell is None:
            continue
        numbers = scene.piece.elements_in(tensor, cell)
        box = Box(x=x, y=y, width=WIDTH, height=_STRIP, fill=scene.colours[cell] if numbers else PALE)
        canvas.add(box)
        words = " ".join(str(number) for number in numbers[:3]) + (" …" if len(numbers) > 3 else "")
        canvas.fit(words, box=box, size=7)


def _panel(scene: _Scene, tensor: TensorFacts) -> Canvas:
    """Return one tensor with its name, shape, strides and grid on a sheet of its own."""
    canvas = Canvas()
    name = _short_name(tensor)
    canvas.add(Words(x=0, y=0.1, text=name, size=10, font="mono", is_bold=True))
    shape = f"shape {tensor.shape}"
    canvas.add(Words(x=width_of(name, 10, font="mono") + 0.12, y=0.1, text=shape, size=10))
    facts = f"strides {tensor.stride}, offset {tensor.offset}"
    canvas.add(Words(x=0, y=0.31, text=facts, size=9, colour=GREY))
    if is_drawable(tensor.shape) and scene.piece.count > 0:
        _draw_grid(canvas, scene, tensor, top=0.48)
    else:
        is_deep = len(tensor.shape) > MAX_DIMENSIONS
        reason = f"{len(tensor.shape)} dimensions: too many to draw" if is_deep else "no elements in memory"
        canvas.add(Words(x=0, y=0.52, text=reason, size=9, colour=GREY))
    return canvas


def _draw_grid(canvas: Canvas, scene: _Scene, tensor: TensorFacts, *, top: float) -> None:
    grid = Grid(tensor.shape)
    left, above = grid.corner
    top += above
    for slot in grid.slots():
        box = Box(x=left + slot.x, y=top + slot.y, width=WIDTH, height=HEIGHT, fill=PAPER)
        if slot.index is None:
            canvas.fit("…", box=box, colour=GREY)
            continue
        cell = scene.piece.of(tensor, slot.index)[0]
        box = replace(box, fill=scene.colours[cell])
        canvas.add(box)
        canvas.fit(value_at(tensor, slot.index), box=replace(box, y=box.y - 0.03))
        x, y = box.x + WIDTH - 0.04, box.y + HEIGHT - 0.07
        canvas.add(Words(x=x, y=y, text=str(cell), size=5.5, align="right"))
    labels = [f"axis {axis}: {step:+d}" for axis, step in enumerate(tensor.stride)]
    draw_arrows(canvas, grid, at=(left, top), labels=labels)
