"""A script alone in a process of its own, from its beginning until it has told enough.

Owns the process, a fresh copy of the working folder for it, and the lines that a setting wrote about it.
What is set and told is left to `sweeping` and `resizing`, scripts that take turns to `race`.
"""

import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from truestep import record, watch
from truestep.tune.search.started import start
from truestep.watch.launch.scratch import Scratch

_FAMILIES = ("optimizer", "data", "backward")
_POLL_S = 0.02
_REPORT_S = 0.5
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, kw_only=True)
class Solo:
    """How it went: what the setting told, and how the script ended."""

    lines: list[dict[str, Any]]
    ended: str | None
    """`finished`, `stopped` (enough was told), `raised`, or None: killed."""
    error: str | None
    code: int
    tail: str
    """The last lines that the script printed, unless its output was shown."""
    is_over_limit: bool = False
    """Whether it was ended as it held more memory than it may."""


def run_alone(
    script: watch.Script,
    scratch: Scratch,
    *,
    setting: tuple[str, Mapping[str, Any]],
    kind: str,
    show: IO[Any] | None = None,
    follow: Callable[[dict[str, Any]], None] | None = None,
    max_bytes: int | None = None,
) -> Solo:
    """Run a script with one setting, in a fresh copy of the working folder, and return the lines of a kind.

    `follow` is given the newest line now and then. A process that holds more than `max_bytes` is ended.
    """
    plan = watch.Plan(families=_FAMILIES, look="never", settings=((setting[0], dict(setting[1])),))
    started = start(script, scratch, plan=plan, show=show)
    folder, process = started.folder, started.process
    try:
        is_over_limit = _wait(process, max_bytes, _newest(folder, kind, follow or _ignore))
    finally:
        started.end()
    lines, end = _read_lines(folder, kind)
    return Solo(
        lines=lines,
        ended=end.get("how"),
        error=end.get("error"),
        code=process.returncode,
        tail=started.tail,
        is_over_limit=is_over_limit,
    )


def _wait(process: subprocess.Popen[Any], max_bytes: int | None, on_status: Callable[[], None]) -> bool:
    """Wait for the end; return whether the process was ended for its memory."""
    report_at = time.monotonic() + _REPORT_S
    while True:
        try:
            process.wait(_POLL_S)
            return False
        except subprocess.TimeoutExpired:
            pass
        if max_bytes is not None and held_bytes(process.pid) > max_bytes:
            return True
        if time.monotonic() > report_at:
            on_status()
            report_at = time.monotonic() + _REPORT_S


def held_bytes(pid: int) -> int:
    """Return the memory that a process holds now, 0 if that cannot be told."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):  # it has just ended, or this is no Linux
        return 0


def _newest(folder: Path, kind: str, follow: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
    num_told = 0

    def on_status() -> None:
        nonlocal num_told
        lines, _ = _read_lines(folder, kind)
        if len(lines) > num_told:
            num_told = len(lines)
            follow(lines[-1])

    return on_status


def _ignore(_line: dict[str, Any]) -> None:
    pass


def _read_lines(folder: Path, kind: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the lines of the process that told most, and how it ended."""
    best: tuple[list[dict[str, Any]], dict[str, Any]] = ([], {})
    for path in sorted(folder.glob("process-*.jsonl")):
        events = list(record.read(path))
        lines = [event for event in events if event["kind"] == kind]
        end = next((event for event in events if event["kind"] == "end"), {})
        if len(lines) > len(best[0]) or not best[1]:
            best = (lines, end)
    return best
