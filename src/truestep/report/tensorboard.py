"""TensorBoard's event files, by torch's own writer; the package tensorboard is optional.

Owns what is written when a run is resumed: TensorBoard is told which steps are void.
"""

import os
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy

from truestep.base.runfiles import require_own
from truestep.errors import UsageError
from truestep.report.answers import CURVE, answers, findings_curve
from truestep.report.live.state import Live
from truestep.report.readings import Matrix, evaluation_curves, evaluation_matrices, storable

_EVALUATE = "evaluate/"
_CELL = 16
"""Pixels for each cell of a matrix, fewer if it would become wider or higher than the next number."""
_MAX_PIXELS = 1024


class Events:
    """Event files in a folder. `add` writes what a run has that was not written yet."""

    def __init__(self, folder: Path) -> None:
        try:
            import tensorboard  # noqa: F401, PLC0415 - torch's message does not say what to install
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415
        except ImportError as error:
            raise UsageError(
                "TensorBoard's files need tensorboard. Install it: pip install 'truestep[tensorboard]'"
            ) from error
        self._folder = folder
        self._make: Any = SummaryWriter
        self._writer: Any = None
        self._num_lives = 0
        self._run_id = ""
        self._written: dict[str, int] = {}
        """By name, the last step that was written."""
        self._answered: dict[str, float] = {}
        """By command, when the answer was given that was written."""

    def add(self, live: Live) -> None:
        """Write what is new; after a resume, first tell from which step on the earlier lines are void."""
        lives = live.lives
        run_id = live.facts.run_id
        is_same = run_id == self._run_id
        if len(lives) != self._num_lives or self._writer is None or not is_same:
            is_same = is_same and len(lives) > self._num_lives > 0
            cursor = min(life.cursor for life in lives[self._num_lives :]) if is_same else 0
            self._open(cursor if lives else None)
            self._num_lives, self._run_id = len(lives), run_id
        ended_s = live.facts.ended_s
        named = {name: curve for name, curve in live.curves.items() if name != "steps_per_s"}
        named |= {_EVALUATE + name: curve for name, curve in evaluation_curves(live.facts).items()}
        for name, curve in named.items():
            last = self._written.get(name, -1)
            first = int(numpy.searchsorted(numpy.array(curve.steps), last, side="right"))
            for step, value in zip(curve.steps[first:], curve.values[first:], strict=True):
                self._writer.add_scalar(storable(name), value, step, walltime=ended_s.at(step))
                self._written[name] = step
        for name, step, matrix in evaluation_matrices(live.facts):
            key = f"{_EVALUATE}{name}"
            if step > self._written.get(key, -1):
                self._writer.add_image(
                    storable(key),
                    _picture(matrix),
                    step,
                    walltime=ended_s.at(step),
                    dataformats="HW",
                )
                self._written[key] = step
        self._add_answers(live)
        self._writer.flush()

    def _add_answers(self, live: Live) -> None:
        """Write what `check` and `verify` answered, once for each answer, and the curve of findings."""
        for answer in answers(live.facts):
            time_s = live.facts.answers[answer.command][-1]["time_s"]
            if self._answered.get(answer.command) == time_s:
                continue
            self._answered[answer.command] = time_s
            self._writer.add_text(f"truestep/{answer.command}", answer.markdown, live.cursor, walltime=time_s)
            if answer.command == "check":
                for step, value in findings_curve(live.facts):
                    self._writer.add_scalar(CURVE, value, step, walltime=time_s)

    def _open(self, cursor: int | None) -> None:
        """Begin a file; steps from the cursor on that are in earlier ones are void, none of them for None."""
        if self._writer is not None:
            self._writer.close()
        require_own(self._folder)
        # A name that nobody can have put there before: the writer would follow a link.
        suffix = f".{os.urandom(8).hex()}"
        self._writer = self._make(str(self._folder), purge_step=cursor, filename_suffix=suffix)
        # Evaluations stand at the number of steps done: the one at the cursor itself came before the kill.
        self._written = {name: min(last, (cursor or 0) - 1) for name, last in self._written.items()}

    def __enter__(self) -> "Events":
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()


def _picture(matrix: Matrix) -> Any:
    """A matrix as grey cells: white is none of a row's sum, black is all of it."""
    table = numpy.nan_to_num(numpy.array(matrix, dtype=float))
    sums = numpy.abs(table).sum(axis=1, keepdims=True)
    share = numpy.clip(table / numpy.where(sums > 0, sums, 1), 0, 1)
    cell = max(1, min(_CELL, _MAX_PIXELS // max(table.shape)))
    return numpy.kron((255 * (1 - share)).astype(numpy.uint8), numpy.ones((cell, cell), dtype=numpy.uint8))
