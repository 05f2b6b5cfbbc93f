"""The live view in a terminal: what is shown, where, and until when.

Owns the screen and the keys. What is known of the run is in `state`.
"""

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from truestep.errors import printable
from truestep.report.live import braille
from truestep.report.numerals import count, duration, number, reading, value_of
from truestep.report.verdicts import findings_in, sameness

if TYPE_CHECKING:
    from truestep.report.live.state import Live

_LOOK_S = 0.5
_LINE_EVERY_S = 15.0
"""Without a terminal there is nothing to draw on: a plain line now and then."""
_SILENT_S = 60.0
"""A run that records nothing for so long may hang, or has very long steps: it is told."""
_WIDE = 120
"""From so many columns on there are two columns of panels."""
_STATUS = {
    "waiting": ("○ waiting for the run to start", "yellow"),
    "running": ("● running", "green"),
    "done": ("✔ done", "green"),
    "stopped": ("■ stopped early", "yellow"),
    "killed": ("✖ killed", "bold bright_red"),
    "unknown": ("● on another machine", "cyan"),
}
_COLOURS = {"kill": "bright_red", "stop": "yellow", "resume": "green", "processes": "bright_magenta"}
_VERDICTS = {"same": "green", "different": "red", "inconclusive": "yellow"}
_SEVERITIES = {"error": "bright_red", "warning": "yellow", "info": "cyan"}


def watch(live: "Live", *, console: Console | None = None) -> None:
    """Show a run until q or Ctrl-C; without a terminal print lines until it is done or nobody reads."""
    console = console or Console(highlight=False)
    with contextlib.suppress(KeyboardInterrupt):
        if console.is_terminal:
            _watch_screen(live, console)
        else:
            _watch_lines(live, console)


def _watch_screen(live: "Live", console: Console) -> None:
    from rich.live import Live as Refresher  # noqa: PLC0415  the name is ours here

    with _keys() as pressed, Refresher(console=console, screen=True, auto_refresh=False) as refresher:
        while True:
            live.poll()
            refresher.update(View(live), refresh=True)
            if pressed(_LOOK_S) in ("q", "Q", "\x03", "\x04"):
                return


def _watch_lines(live: "Live", console: Console) -> None:
    """One plain line when something happens, and now and then."""
    due_s, said = 0.0, ""
    reported: set[tuple[object, ...]] = set()
    while True:
        live.poll()
        for mark in live.marks():
            # How much of a killed run was done again is known later: it is the same kill.
            key = (mark.kind, mark.step, mark.time_s, "" if mark.kind == "kill" else mark.words)
            if key not in reported:
                reported.add(key)
                console.print(Text(f"{printable(mark.words)}"), soft_wrap=True)
        if live.status != said or time.monotonic() >= due_s:
            said, due_s = live.status, time.monotonic() + _LINE_EVERY_S
            console.print(Text(_line(live)), soft_wrap=True)
        if live.status == "done":
            return
        time.sleep(_LOOK_S)


def _line(live: "Live") -> str:
    of = f" of {live.end:,}" if live.end is not None else ""
    parts = [f"{printable(live.folder)}: {_STATUS[live.status][0][2:]}"]
    if live.lives:
        parts.append(f"step {live.cursor:,}{of}")
    if len(live.loss):
        parts.append(f"loss {number(live.loss.values[-1])}")
    rate, left_s = live.rate(), live.left_s()
    if rate is not None and live.status == "running":
        parts.append(f"{number(rate)} steps/s")
    if left_s is not None:
        parts.append(f"{duration(round(left_s))} left")
    return ", ".join(parts)


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Give a function that waits for a key, at most so long; keys are not shown meanwhile."""
    if not sys.stdin.isatty():
        yield _no_keys
        return
    import termios  # noqa: PLC0415  not on every system
    import tty  # noqa: PLC0415

    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([file], [], [], seconds)
        return os.read(file, 1).decode(errors="replace") if ready else ""

    try:
        tty.setcbreak(file)
        yield pressed
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def _no_keys(seconds: float) -> str:
    time.sleep(seconds)
    return ""


class View:
    """A run drawn to the size of the terminal."""

    def __init__(self, live: "Live") -> None:
        self._live = live

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Fill the screen: head, bar, curves, then what else is known."""
        width, height = options.max_width, options.height or console.height
        yield self._head(width)
        yield self._bar(width)
        rest = height - 3
        if width >= _WIDE:
            left, right = width * 5 // 8, width - width * 5 // 8
            grid = Table.grid(padding=0)
            grid.add_column(width=left)
            grid.add_column(width=right)
            grid.add_row(self._charts(left, rest), self._side(right, rest))
            yield grid
        else:
            chart = max(rest * 3 // 5, 7)
            yield self._chart("loss", width, chart)
            yield self._pair(width, max(rest - chart, 4))
        yield Text(" q ends the view, not the run", style="dim", end="")

    def _head(self, width: int) -> Table:
        live = self._live
        grid = Table.grid(expand=True, padding=(0, 1))
        grid.add_column(no_wrap=True, overflow="ellipsis")
        grid.add_column(justify="right", no_wrap=True)
        words, style = _STATUS[live.status]
        state = Text(words, style=style)
        if live.lives:
            num = live.lives[-1].processes
            alive = sum(item is True for item in live.alive)
            missing = live.status == "running" and alive < num
            state.append(
                f"  {alive} of {num} processes"
                if missing
                else f"  {count(num, 'process', plural='processes')}",
                "default",
            )
            if live.status == "running" and live.silent_s() > _SILENT_S:
                state.append(f"  silent for {duration(round(live.silent_s()))}", "bold yellow")
            if len(live.lives) > 1:
                state.append(f"  {count(len(live.lives) - 1, 'resume')}", "default")
        # The end of a path says more than its beginning.
        name, room = printable(live.folder), max(width - state.cell_len - len(" truestep ") - 3, 8)
        name = name if cell_len(name) <= room else "…" + name[-(room - 1) :]
        grid.add_row(Text.assemble((" truestep ", "dim"), (name, "bold")), state)
        grid.width = width
        return grid

    def _bar(self, width: int) -> Table:
        live = self._live
        facts = []
        rate, left_s = live.rate(), live.left_s()
        if rate is not None and live.status in ("running", "unknown"):
            facts.append(f"{number(rate)} steps/s")
        if left_s is not None:
            facts.append(f"{duration(round(left_s))} left")
        of = f" of {live.end:,}" if live.end is not None else ""
        text = f"{live.cursor:,}{of} steps"
        if live.end:
            text += f"  {min(live.cursor / live.end, 1):.0%}"
        grid = Table.grid(expand=True, padding=(0, 1))
        grid.add_column(width=1)
        grid.add_column(ratio=1)
        grid.add_column(no_wrap=True)
        grid.add_column(no_wrap=True, style="cyan", justify="right")
        bar = ProgressBar(total=live.end or 1, completed=min(live.cursor, live.end or 0))
        grid.add_row("", bar, text, "  ".join(facts))
        grid.width = width
        return grid

    def _charts(self, width: int, height: int) -> Table:
        others = [name for name in self._live.curves if name != "loss"]
        preferred = [name for name in ("grad_norm", "learning_rate", "steps_per_s") if name in others]
        shown = ["loss", *(preferred or others)[:1]] if height >= 20 else ["loss"]
        grid = Table.grid(padding=0)
        grid.add_column(width=width)
        each = height // len(shown)
        for index, name in enumerate(shown):
            last = height - each * (len(shown) - 1)
            grid.add_row(self._chart(name, width, last if index == 0 else each))
        return grid

    def _chart(self, name: str, width: int, height: int) -> Panel:
        curve = self._live.curves.get(name)
        title = Text(f" {printable(name)} ", style="bold")
        if curve is None or not (points := self._live.points(name, 4 * width))[0]:
            body: Text = Text("nothing recorded yet" if curve is None else "no finite value yet", style="dim")
        else:
            title.append(f"{value_of(name, curve.values[-1])} ", "bold bright_blue")
            marks = {mark.step: _COLOURS.get(mark.kind, "yellow") for mark in self._live.marks()}
            may_be_log = name.endswith(("loss", "norm"))
            look = braille.ChartStyle(width=width - 4, height=height - 2, marks=marks, may_be_log=may_be_log)
            course = self._live.mean(name, 2 * width) if len(curve) > 3 * width else ([], [])
            body = Text("\n").join(braille.draw(points, course, look=look))
            if curve.num_nonfinite:
                title.append(f"({curve.num_nonfinite:,} not finite) ", "red")
        body.no_wrap = True
        return Panel(body, title=title, title_align="left", height=height, border_style="dim")

    def _pair(self, width: int, height: int) -> Table:
        grid = Table.grid(padding=0)
        left = width * 7 // 20
        grid.add_column(width=left)
        grid.add_column(width=width - left)
        grid.add_row(self._values(height), self._happened(height))
        return grid

    def _side(self, width: int, height: int) -> Table:
        grid = Table.grid(padding=0)
        grid.add_column(width=width)
        values = min(len(self._live.curves) + len(self._live.facts.evaluations) + 2, height // 3)
        processes = min((len(self._live.alive) or 1) + 3, height // 3)
        grid.add_row(self._values(max(values, 4)))
        grid.add_row(self._processes(max(processes, 4)))
        grid.add_row(self._happened(max(height - max(values, 4) - max(processes, 4), 4)))
        return grid

    def _values(self, height: int) -> Panel:
        rows = [(name, value_of(name, curve.values[-1])) for name, curve in self._live.curves.items()]
        latest = {item.name: item.value for item in self._live.facts.evaluations}
        rows += [(name, reading(name, value)[:40]) for name, value in latest.items()]
        grid = Table.grid(expand=True, padding=(0, 1))
        grid.add_column(style="dim", no_wrap=True, overflow="ellipsis", ratio=1)
        grid.add_column(justify="right", no_wrap=True, overflow="ellipsis")
        for name, shown in rows[: height - 2]:
            grid.add_row(Text(printable(name)), Text(printable(shown)))
        return _panel(grid, "last values", height)

    def _processes(self, height: int) -> Panel:
        live = self._live
        grid = Table.grid(padding=(0, 2))
        for life in live.lives[-1:]:
            grid.add_row(
                Text(f"started after step {life.cursor:,}, {duration(round(time.time() - life.time_s))} ago")
            )
            for rank, (pid, alive) in enumerate(zip(life.pids, live.alive, strict=False)):
                words, style = ("ended", "dim") if life.is_ended and alive is False else _ALIVE[alive]
                grid.add_row(Text.assemble((f"rank {rank}  pid {pid}  ", "dim"), (words, style)))
        return _panel(grid, "processes", height)

    def _happened(self, height: int) -> Panel:
        """The latest of what happened, and findings, as many as there is room for."""
        live = self._live
        lines = [
            Text.assemble(
                (time.strftime("%H:%M:%S ", time.localtime(mark.time_s)), "dim"),
                (printable(mark.words), _COLOURS.get(mark.kind, "yellow")),
            )
            for mark in reversed(live.marks())
        ]
        for finding in islice(findings_in(live.facts.last_answer("check") or {}), height):
            words = f"{finding.get('code', '')} {finding.get('name', '')} line {finding.get('line', '?')}"
            lines.append(Text(printable(words), _SEVERITIES.get(str(finding.get("severity")), "default")))
        if (verdict := live.facts.last_answer("verify")) is not None:
            words = sameness(verdict.get("same"))
            lines.append(Text(f"verify: {words}", _VERDICTS[words]))
        if live.facts.snapshot_cursor is not None:
            lines.append(Text(f"last snapshot at step {live.facts.snapshot_cursor:,}", "dim"))
        if live.num_unread:
            lines.append(Text(f"{count(live.num_unread, 'damaged or unknown line')} skipped", "dim"))
        room = height - 2
        if len(lines) > room:
            lines = [*lines[: room - 1], Text(f"and {len(lines) - room + 1:,} more", "dim")]
        grid = Table.grid()
        grid.add_column(no_wrap=True, overflow="ellipsis")
        for line in lines:
            grid.add_row(line)
        return _panel(grid, "what happened", height)


_ALIVE: dict[bool | None, tuple[str, str]] = {
    True: ("runs", "green"),
    False: ("gone", "bright_red"),
    None: ("on another machine", "cyan"),
}


def _panel(body: Table, title: str, height: int) -> Panel:
    return Panel(body, title=f" {title} ", title_align="left", height=height, border_style="dim")
