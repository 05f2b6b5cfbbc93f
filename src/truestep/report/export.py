"""A run's record in the files of other tools: CSV and TensorBoard.

Owns where it is written and as what.
"""

import contextlib
import csv
import io
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy

from truestep.base import plainfile
from truestep.base.runfiles import replacing
from truestep.errors import UsageError
from truestep.report import tensorboard
from truestep.report.answers import CURVE, findings_curve
from truestep.report.curve import Curve
from truestep.report.live.state import Live
from truestep.report.readings import evaluation_curves, storable

To = Literal["csv", "tensorboard"]

_OUT = {"csv": "record.csv", "tensorboard": "tensorboard"}
_LOOK_S = 1.0
_FORMULA = re.compile(r"(?:^|(?<=;))(?=\s*[=+\-@＝＋－＠])")  # noqa: RUF001 - wide forms count as the others
"""Where a cell that is computed begins; some spreadsheets cut cells at a semicolon."""


def open_run(run: str | Path) -> Live:
    """Return a run that has been read to its end; refuse a folder without a record."""
    live = Live(run)
    path = live.folder / "record.jsonl"
    if not plainfile.is_there(path):
        raise UsageError(f"{run} has no record.jsonl. Pass the folder of a run, as given to truestep.Run.")
    live.poll()
    return live


def export(run: str | Path, to: To, *, out: str | Path | None = None, follow: bool = False) -> Path:
    """Write a run's losses, values and evaluations for another tool; return the file, or the folder.

    Each step is there once: what a kill made void is left out. Evaluations stand at the number of steps
    done. With `follow`, for TensorBoard only, go on while the run does, until it is done.
    """
    if to not in _OUT:
        raise UsageError(f"a run can be exported to csv or tensorboard, got {to!r}. Use one of them.")
    if follow and to != "tensorboard":
        raise UsageError(f"only TensorBoard's files can be followed, got --to {to}. Remove --follow.")
    path = Path(out) if out is not None else Path(run) / _OUT[to]
    live = Live(run) if follow else open_run(run)
    try:
        _write(live, to, path=path, follow=follow)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written ({error.strerror or error}). Pass another one with --out."
        ) from error
    return path


def _write(live: Live, to: To, *, path: Path, follow: bool) -> None:
    if to == "csv":
        _write_csv(columns_of(live), path)
    elif follow:
        _follow(live, path)
    else:
        with tensorboard.Events(path) as events:
            events.add(live)


def _follow(live: Live, path: Path) -> None:
    with tensorboard.Events(path) as events, contextlib.suppress(KeyboardInterrupt):
        while True:
            live.poll()
            events.add(live)
            if live.status == "done":
                return
            time.sleep(_LOOK_S)


def columns_of(live: Live) -> dict[str, Curve]:
    """Return the time at which each step ended, its loss, logged values, `evaluate/NAME`, and findings."""
    named = {name: curve for name, curve in live.curves.items() if name != "steps_per_s"}
    evaluations = {f"evaluate/{name}": curve for name, curve in evaluation_curves(live.facts).items()}
    found = {CURVE: findings_curve(live.facts)} if live.facts.answers["check"] else {}
    curves = {"time_s": live.facts.ended_s, **named, **evaluations, **found}
    return {storable(name): curve for name, curve in curves.items()}


def _write_csv(columns: dict[str, Curve], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        lines = io.TextIOWrapper(file, newline="", encoding="utf-8")
        writer = csv.writer(lines)
        writer.writerow(["step", *map(_cell, columns)])
        writer.writerows(_rows([*columns.values()]))
        lines.detach()  # what it holds is written, and the file stays open


def _rows(curves: list[Curve]) -> Iterator[list[str]]:
    """Yield a row for each step that any of the curves has a value at."""
    places = [0] * len(curves)
    for step in numpy.unique(numpy.concatenate([numpy.array(curve.steps) for curve in curves])).tolist():
        row = [str(int(step))]
        for number, curve in enumerate(curves):
            at = places[number]
            has_value = at < len(curve) and curve.steps[at] == step
            # repr: the shortest text that gives the same float again
            row.append(repr(curve.values[at]) if has_value else "")
            places[number] += has_value
        yield row


def _cell(name: str) -> str:
    """Return a name that a spreadsheet takes for text; what cannot be printed is written by its number."""
    shown = "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in name)
    return shown if _is_number(shown) else _FORMULA.sub("'", shown)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
