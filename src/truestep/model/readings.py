"""Readings: what a tap saw of one tensor at one moment, and how many of them are shown and chosen from.

Owns the record of a tensor and the paths inside a module's output. Hooks are placed by `taps`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from torch import Tensor

from truestep.errors import UsageError
from truestep.model.statistics import Statistics
from truestep.model.tables import columns

if TYPE_CHECKING:
    from rich.table import Table

Kind: TypeAlias = Literal["output", "input", "gradient"]
_COLUMNS = ("name", "what", "shape", "mean", "std", "min", "max", "zero", "not finite")
_NUM_LEFT = 3


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    """One tensor at one moment: where it was read, its statistics, and a copy of it if copies are kept."""

    name: str
    kind: Kind
    """What left the module, what went in, or the loss's gradient with respect to what left it."""
    forward: int
    """Which forward pass of the model since the tap was placed, from 0."""
    call: int
    """Which call of this module in that pass, from 0."""
    path: str
    """Where in the output (or the inputs): "" for a plain tensor, "1.0", "last_hidden_state"."""
    shape: tuple[int, ...]
    dtype: torch.dtype
    value: Tensor | None = field(repr=False)
    """A detached copy with `values=True`, else None."""
    _later: Callable[[], Statistics] = field(repr=False)

    @cached_property
    def statistics(self) -> Statistics:
        """Count, mean, spread, range, zeros, values that are not finite. On a GPU, asking waits for it."""
        return self._later()

    @property
    def label(self) -> str:
        """Name, call and path in one: `lstm[1].0` is the first output of the second call."""
        call = f"[{self.call}]" if self.call else ""
        path = f".{self.path}" if self.path else ""
        return f"{self.name or '(model)'}{call}{path}"

    def __str__(self) -> str:
        return f"{self.kind} of {self.label} {list(self.shape)}: {self.statistics}"


def choose(readings: Sequence[Reading], *, forward: int, call: int | None, path: str | None) -> Reading:
    """Return the one of a name's readings that fits; none or several are an error that lists them all."""
    what = f"{readings[0].kind}s of {readings[0].name or '(model)'!r}"
    passes = sorted({reading.forward for reading in readings})
    if not -len(passes) <= forward < len(passes):
        raise UsageError(
            f"there are {len(passes)} forward passes with {what}, got forward={forward}. "
            f"Pass a number from {-len(passes)} to {len(passes) - 1}."
        )
    own = [reading for reading in readings if reading.forward == passes[forward]]
    found = [reading for reading in own if call in (None, reading.call) and path in (None, reading.path)]
    if len(found) == 1:
        return found[0]
    there = ", ".join(f"call={reading.call} path={reading.path!r}" for reading in own)
    raise UsageError(
        f"{len(found)} {what} fit, one was expected. There are {there}. "
        "Choose one by call and path, or go through `taps.readings`."
    )


def as_text(readings: Iterable[Reading]) -> str:
    """Return a table of plain text."""
    return columns([_COLUMNS, *map(_row, readings)], left=_NUM_LEFT)


def as_table(readings: Iterable[Reading], *, title: str) -> "Table":
    """Return a table for rich."""
    from rich.table import Table  # noqa: PLC0415 - as in `tables`

    table = Table(title=title, title_justify="left")
    for at, column in enumerate(_COLUMNS):
        table.add_column(column, justify="left" if at < _NUM_LEFT else "right")
    for reading in readings:
        table.add_row(*_row(reading))
    return table


def _row(reading: Reading) -> tuple[str, ...]:
    it = reading.statistics
    numbers = [f"{number:.3g}" for number in (it.mean, it.std, it.min, it.max)]
    shape = "x".join(map(str, reading.shape)) or "1"
    fractions = [f"{it.zeros:.0%}", f"{it.nonfinite:.2%}"]
    return reading.label, reading.kind, shape, *numbers, *fractions
