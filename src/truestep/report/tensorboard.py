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
from truestep.report.answers import CURVE, findings_curve
from truestep.report.live.state import Live
from truestep.report.readings import evaluation_curves, storable

_EVALUATE = "evaluate/"


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
        self._answered_s: float | None = None
        """When the answer of `check` was given that was written."""

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
        self._add_findings(live)
        self._writer.flush()

    def _add_findings(self, live: Live) -> None:
        """Write the curve of what `check` found, once for each answer."""
        answer = live.facts.last_answer("check")
        if answer is not None and answer["time_s"] != self._answered_s:
            self._answered_s = answer["time_s"]
            for step, value in findings_curve(live.facts):
                self._writer.add_scalar(CURVE, value, step, walltime=self._answered_s)

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
