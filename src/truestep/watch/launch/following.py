"""Following a watched script while it runs: how many steps its processes have made.

Owns waiting for a script's end. Reads only the ends of the files that it writes, a few times per second.
"""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from truestep.watch.plan import Plan

OnStep = Callable[[int, int | None], None]
"""Gets the number of steps so far when it has grown, and at how many the plan ends the script."""
LOOK_S = 0.25
_TAIL_BYTES = 1 << 16
_STEPS = re.compile(rb'"steps":(\d+)\}\n')


def ignore_steps(_step: int, _num_steps: int | None) -> None:
    """For those who do not want to know."""


def wait(
    process: subprocess.Popen[bytes],
    folder: Path,
    *,
    plan: Plan,
    on_step: OnStep,
    on_look: Callable[[], None] = lambda: None,
    timeout_s: float | None = None,
) -> int:
    """Wait for a script's end and return its exit code; `on_step` hears of steps, `on_look` of each look.

    `folder` is the one that its evidence goes to. Raises TimeoutExpired as Popen.wait does.
    """
    num_steps, left_s = 0, timeout_s
    while True:
        try:
            return process.wait(LOOK_S if left_s is None else min(LOOK_S, left_s))
        except subprocess.TimeoutExpired:
            left_s = None if left_s is None else left_s - LOOK_S
            if left_s is not None and left_s <= 0:
                raise
        on_look()
        now = num_steps_so_far(folder)
        if now > num_steps:
            num_steps = now
            on_step(now, plan.steps)


def num_steps_so_far(folder: Path) -> int:
    """Return how many steps the process has made that made most, as far as it has written that."""
    return max((_num_steps(path) for path in folder.glob("process-*.jsonl")), default=0)


def _num_steps(path: Path) -> int:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            found = _STEPS.findall(file.read())
    except OSError:
        return 0
    return int(found[-1]) if found else 0
