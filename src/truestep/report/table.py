"""A run as one table: a row for each step, a column for each thing that is known by step.

Owns the columns and how they are brought together. Writing them is left to others.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy
import numpy.typing

from truestep.report.answers import CURVE, findings_curve
from truestep.report.curve import Curve
from truestep.report.live.state import Live
from truestep.report.readings import evaluation_curves, storable

Floats = numpy.typing.NDArray[numpy.float64]
Flags = numpy.typing.NDArray[numpy.bool_]


@dataclass(frozen=True, kw_only=True)
class Column:
    """The values of one column, and where there is none."""

    values: Floats
    is_missing: Flags


@dataclass(frozen=True, kw_only=True)
class Table:
    """Steps in their order, and a column for each name."""

    steps: numpy.typing.NDArray[numpy.int64]
    columns: dict[str, Column]

    def rows(self) -> Iterator[tuple[int, dict[str, float]]]:
        """Yield each step with what is known of it."""
        names = list(self.columns)
        values = [column.values.tolist() for column in self.columns.values()]
        missing = [column.is_missing.tolist() for column in self.columns.values()]
        for at, step in enumerate(self.steps.tolist()):
            yield (
                step,
                {name: values[place][at] for place, name in enumerate(names) if not missing[place][at]},
            )


def tabulate(live: Live) -> Table:
    """Return the time at which each step ended, its loss, logged values, `evaluate/NAME`, and findings."""
    named = {name: curve for name, curve in live.curves.items() if name != "steps_per_s"}
    evaluations = {f"evaluate/{name}": curve for name, curve in evaluation_curves(live.facts).items()}
    curves = {"time_s": live.facts.ended_s, **named, **evaluations}
    curves |= {CURVE: findings_curve(live.facts)} if live.facts.answers["check"] else {}
    steps = numpy.unique(numpy.concatenate([numpy.array(curve.steps) for curve in curves.values()]))
    steps = steps.astype(numpy.int64)
    return Table(
        steps=steps, columns={storable(name): _aligned(curve, steps) for name, curve in curves.items()}
    )


def _aligned(curve: Curve, steps: numpy.typing.NDArray[numpy.int64]) -> Column:
    values, is_missing = numpy.zeros(len(steps)), numpy.ones(len(steps), dtype=bool)
    places = numpy.searchsorted(steps, numpy.array(curve.steps, dtype=numpy.int64))
    values[places], is_missing[places] = numpy.array(curve.values), False
    return Column(values=values, is_missing=is_missing)
