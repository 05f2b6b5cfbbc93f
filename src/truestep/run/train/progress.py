"""What the terminal shows: a bar while training, one calm line for each thing.

Owns the terminal. Everything goes to standard error; standard output belongs to the script.
"""

import time
from functools import cached_property
from typing import TYPE_CHECKING

from truestep.errors import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

_LINE_EVERY_S = 15.0
"""Without a terminal there is no bar: a plain line now and then shows that the run is alive."""


class Terminal:
    """Shows progress and says things. Silent when `is_on` is false, except for warnings.

    The terminal belongs to the first process of a run; on the others nothing is ever said.
    """

    def __init__(self, *, is_on: bool, is_first: bool = True) -> None:
        self.is_on = is_on and is_first
        self._is_first = is_first
        self._bar: Progress | None = None
        self._total: int | None = None
        self._first = self._done = 0
        self._started_s = self._line_due_s = 0.0

    @cached_property
    def _console(self) -> "Console":
        from rich.console import Console  # noqa: PLC0415  a third of what importing truestep would take

        return Console(stderr=True, highlight=False, soft_wrap=True)

    @property
    def is_notebook(self) -> bool:
        """Whether what is shown goes into the cell of a notebook."""
        return self._console.is_jupyter

    def say(self, text: str) -> None:
        """Print one line, above the bar if there is one."""
        if self.is_on:
            self._print(text, style="dim")

    def warn(self, text: str) -> None:
        """Print one line even where progress is off."""
        if self._is_first:
            self._print(text, style="yellow")

    def _print(self, text: str, *, style: str) -> None:
        from rich.text import Text  # noqa: PLC0415  as above

        # Not as markup: a folder may be named like a tag.
        self._console.print(Text.assemble(("truestep", style), " ", printable(text, keep="\n")))

    def start(self, *, done: int, total: int | None) -> None:
        """Begin to show a loop that stands at `done` of `total` steps."""
        self._first = self._done = done
        self._total = total
        self._started_s = time.monotonic()
        self._line_due_s = self._started_s + _LINE_EVERY_S
        if self.is_on and self._console.is_terminal and not self.is_notebook:
            self._bar = self._make_bar()
            self._bar.add_task("training", total=total, completed=done, note="")
            self._bar.start()

    def _make_bar(self) -> "Progress":
        from rich.progress import (  # noqa: PLC0415  as above
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("[dim]truestep[/dim]"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(compact=True),
        )
        # No refresh thread: it would take the interpreter from the loop ten times a second.
        return Progress(*columns, console=self._console, auto_refresh=False, transient=True)

    def advance(self, done: int, loss: float | None) -> None:
        """Show where the loop stands; called about twice a second."""
        self._done = done
        if not self.is_on:
            return
        note = self._note(loss)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, note=note)
            self._bar.refresh()
        elif time.monotonic() >= self._line_due_s:
            self._line_due_s = time.monotonic() + _LINE_EVERY_S
            of = f" of {self._total:,}" if self._total is not None else ""
            self.say(f"step {done:,}{of}  {note}")

    def _note(self, loss: float | None) -> str:
        shown = "" if loss is None else f"loss {loss:.4f}  "
        return f"{shown}{self.rate():,.4g} steps/s"

    def rate(self) -> float:
        """Steps per second since `start`."""
        return (self._done - self._first) / max(time.monotonic() - self._started_s, 1e-9)

    def stop(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
