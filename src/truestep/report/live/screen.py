"""The live view in a terminal: what is shown, where, and until when.

Owns the screen. What is known of the run is in `state`.
"""

import contextlib
import time
from collections.abc import Iterator
from itertools import islice

import numpy as np
from rich.console import Console, Group
from rich.live import Live as Screen
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from truestep.errors import printable
from truestep.report.curve import Curve
from truestep.report.live.state import Live
from truestep.report.numerals import count, duration, number, reading, value_of
from truestep.report.verdicts import findings_in, sameness

_LOOK_S = 0.5
_LINE_EVERY_S = 15.0
"""Without a terminal there is nothing to draw on: a plain line now and then."""
_SILENT_S = 60.0
"""A run that records nothing for so long may hang, or has very long steps."""
_LOG_FROM = 30.0
"""A curve whose highest value is so many times its lowest is drawn with logarithms."""
_STATUS = {
    "waiting": ("waiting for the run to start", "yellow"),
    "running": ("running", "green"),
    "done": ("done", "green"),
    "stopped": ("stopped early", "yellow"),
    "killed": ("killed", "bold bright_red"),
    "unknown": ("on another machine", "cyan"),
}
_COLOURS = {"kill": "bright_red", "stop": "yellow", "resume": "green", "processes": "bright_magenta"}
_VERDICTS = {"same": "green", "different": "red", "inconclusive": "yellow"}
_SEVERITIES = {"error": "bright_red", "warning": "yellow", "info": "cyan"}
_MAX_NAME = 30
_BARS = "▁▂▃▄▅▆▇█"


def watch(live: Live, *, console: Console | None = None) -> None:
    """Show a run until Ctrl-C; without a terminal print lines until it is done."""
    console = console or Console(highlight=False)
    with contextlib.suppress(KeyboardInterrupt):
        if not console.is_terminal:
            _print_lines(live, console)
            return
        with Screen(console=console, screen=True, auto_refresh=False) as screen:
            while True:
                live.poll()
                screen.update(draw(live, width=console.width, height=console.height), refresh=True)
                time.sleep(_LOOK_S)


def _print_lines(live: Live, console: Console) -> None:
    """One plain line when something happens, and now and then."""
    due_s, last_status = 0.0, ""
    reported: set[tuple[object, ...]] = set()
    while True:
        live.poll()
        for mark in live.marks():
            # How much of a killed run was done again is known later: it is the same kill.
            key = (mark.kind, mark.step, mark.time_s, "" if mark.kind == "kill" else mark.words)
            if key not in reported:
                reported.add(key)
                console.print(Text(printable(mark.words)), soft_wrap=True)
        if live.status != last_status or time.monotonic() >= due_s:
            last_status, due_s = live.status, time.monotonic() + _LINE_EVERY_S
            console.print(Text(_line(live)), soft_wrap=True)
        if live.status == "done":
            return
        time.sleep(_LOOK_S)


def _line(live: Live) -> str:
    parts = [f"{printable(live.folder)}: {_STATUS[live.status][0]}"]
    if live.lives:
        parts.append(f"step {_progress(live)}")
    if live.facts.losses:
        parts.append(f"loss {number(live.facts.losses.values[-1])}")
    return ", ".join([*parts, *_speed(live)])


def _progress(live: Live) -> str:
    return f"{live.cursor:,}" + (f" of {live.end:,}" if live.end is not None else "")


def _speed(live: Live) -> Iterator[str]:
    rate, left_s = live.rate(), live.left_s()
    if rate is not None and live.status in ("running", "unknown"):
        yield f"{number(rate)} steps/s"
    if left_s is not None:
        yield f"{duration(round(left_s))} left"


def draw(live: Live, *, width: int, height: int) -> Group:
    """Return a run drawn to the size of the terminal: head, bar, what happened, values and their course."""
    bar = Table.grid(expand=True, padding=(0, 1))
    bar.add_column(ratio=1)
    bar.add_column(no_wrap=True)
    share = f"  {min(live.cursor / live.end, 1):.0%}" if live.end else ""
    words = "  ".join([f"{_progress(live)} steps{share}", *_speed(live)])
    bar.add_row(ProgressBar(total=live.end or 1, completed=min(live.cursor, live.end or 0)), words)
    room = height - 4
    happened = _cut(list(_happened(live)), max(room // 2, room - len(live.curves) - 6))
    values = _values(live, room - len(happened), width=width // 3)
    keys = Text("Ctrl-C ends the view, not the run", style="dim")
    return Group(_head(live), bar, *happened, Text(), values, keys)


def _cut(lines: list[Text], room: int) -> list[Text]:
    rest = len(lines) - room + 1
    return lines if rest < 2 else [*lines[: room - 1], Text(f"and {rest:,} more", "dim")]


def _head(live: Live) -> Text:
    words, style = _STATUS[live.status]
    name = printable(live.folder)
    name = name if len(name) <= _MAX_NAME else f"…{name[-_MAX_NAME:]}"  # the end of a path says most
    head = Text.assemble((name, "bold"), "  ", (words, style))
    if live.lives:
        num, alive = live.lives[-1].processes, live.alive.count(True)
        is_missing = live.status == "running" and alive < num
        processes = f"{alive} of {num} processes" if is_missing else count(num, "process", plural="processes")
        head.append(f"  {processes}")
    if len(live.lives) > 1:
        head.append(f"  {count(len(live.lives) - 1, 'resume')}")
    return _one_line(head)


def _one_line(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _happened(live: Live) -> Iterator[Text]:
    """Yield what needs attention first, then the latest of what happened."""
    if live.status == "running" and live.silent_s() > _SILENT_S:
        yield Text(f"silent for {duration(round(live.silent_s()))}", "bold yellow")
    if live.status == "running":
        for rank, (pid, alive) in enumerate(zip(live.lives[-1].pids, live.alive, strict=False)):
            if alive is False:
                yield Text(f"rank {rank}, pid {pid}: gone", "bright_red")
    for finding in islice(findings_in(live.facts.last_answer("check") or {}), 200):
        words = f"{finding.get('code', '')} {finding.get('name', '')} line {finding.get('line', '?')}"
        style = _SEVERITIES.get(str(finding.get("severity")), "default")
        yield _one_line(Text(printable(words), style))
    if (verdict := live.facts.last_answer("verify")) is not None:
        words = sameness(verdict.get("same"))
        yield Text(f"verify: {words}", _VERDICTS[words])
    if live.facts.snapshot_cursor is not None:
        yield Text(f"last snapshot at step {live.facts.snapshot_cursor:,}", "dim")
    if live.num_unread:
        yield Text(f"{count(live.num_unread, 'damaged or unknown line')} skipped", "dim")
    for mark in reversed(live.marks()):
        at = (time.strftime("%H:%M:%S ", time.localtime(mark.time_s)), "dim")
        yield _one_line(Text.assemble(at, (printable(mark.words), _COLOURS.get(mark.kind, "yellow"))))


def _values(live: Live, room: int, *, width: int) -> Table | Text:
    """Return a row for each value: its name, its last value, its course."""
    latest = {item.name: item.value for item in live.facts.evaluations}
    rows = [
        (name, value_of(name, curve.values[-1]), _course(curve, width)) for name, curve in live.curves.items()
    ]
    rows += [(name, reading(name, value), "") for name, value in latest.items()]
    if not rows:
        return Text("nothing recorded yet", "dim")
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(style="dim", no_wrap=True, overflow="ellipsis", ratio=1)
    grid.add_column(justify="right", no_wrap=True, overflow="ellipsis", max_width=40)
    grid.add_column(style="bright_cyan", no_wrap=True, width=width)
    for name, value, course in rows[: max(room, 1)]:
        grid.add_row(Text(printable(name)), Text(printable(value)), course)
    return grid


def _course(curve: Curve, width: int) -> str:
    """Return a curve in one line: the mean of each stretch, from the lowest to the highest."""
    finite = curve.series.finite.values
    if not len(finite):
        return "no finite value yet"
    scaled = finite / (np.abs(finite).max() or 1.0)  # sums of huge values would overflow
    means = np.array([part.mean() for part in np.array_split(scaled, min(width, len(scaled)))])
    if means.min() > 0 and means.max() > _LOG_FROM * means.min():
        means = np.log(means)
    places = (means - means.min()) / ((means.max() - means.min()) or 1.0)
    return "".join(_BARS[round(place * (len(_BARS) - 1))] for place in places.tolist())
