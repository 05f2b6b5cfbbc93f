"""Gathering: one run of a script under observation, kept as rules need it.

Owns the plan. What is observed and how is in `truestep.watch`.
"""

import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, NamedTuple

from truestep import watch
from truestep.hang import Patrol
from truestep.rules.evidence import Evidence
from truestep.watch.launch import following
from truestep.watch.launch.following import OnStep, ignore_steps
from truestep.watch.launch.scratch import Scratch

_LAST_LOOKED_AT = 2
_PATIENCE_S = 30.0
_END_S = 40.0
"""How long torchrun may take to end after its processes were killed."""
_INTERRUPTED = 130
"""The exit code of a script that did not end when it was asked to."""


def check_plan(steps: int | None = None) -> watch.Plan:
    """Return what is kept: all moments, and each operation of the first steps without its values."""
    return watch.Plan(inspect=True, operations=(0, _LAST_LOOKED_AT), bits="none", steps=steps, hangs=True)


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """How the script is run."""

    steps: int | None = None
    """Optimizer steps after which it is stopped."""
    processes: int | None = None
    """How many torchrun starts; without it the script is started as `python` would start it."""
    timeout_s: float | None = None
    """Seconds after which it is ended."""
    settings: tuple[tuple[str, Any], ...] = ()
    """What else is put in place in the script's process, see `Plan.settings`."""
    on_evidence: Callable[[Path], None] = lambda _folder: None
    """Gets the folder with what the script's process wrote, before it is deleted."""
    stdout: int | IO[Any] | None = None
    stderr: int | IO[Any] | None = None


class Gathered(NamedTuple):
    """How a script ended, and what was observed."""

    code: int
    """The script's exit code."""
    evidence: Evidence
    is_timed_out: bool = False


def gather(
    script: watch.Script,
    *,
    plan: watch.Plan,
    options: CheckOptions = CheckOptions(),
    scratch: Scratch | None = None,
    on_step: OnStep = ignore_steps,
    beside: Callable[[Path], AbstractContextManager[Any]] = nullcontext,
) -> Gathered:
    """Run a script to its end and return its exit code and the evidence.

    With `scratch` it runs as one process in a copy of the working folder, gets no input, and nothing is shown
    of what it prints. `on_step` hears of steps. What `beside` returns for the folder of evidence is entered
    while the script runs.
    """
    with tempfile.TemporaryDirectory(prefix="truestep-check-") as folder:
        how: dict[str, Any] = {"stdout": options.stdout, "stderr": options.stderr}
        processes = options.processes
        if scratch is None:
            plan = replace(plan, settings=options.settings)
        else:
            scratch.renew()
            processes, how = None, dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        process = watch.start(
            script,
            plan=plan,
            folder=Path(folder),
            scratch=scratch,
            processes=processes,
            **how,
        )
        patrol = Patrol(Path(folder))
        with beside(Path(folder)):
            code, is_timed_out = _wait(
                process,
                lambda: following.wait(
                    process,
                    Path(folder),
                    plan=plan,
                    on_step=on_step,
                    on_look=lambda: _require_progress(patrol),
                    timeout_s=options.timeout_s,
                ),
                patrol=patrol,
            )
        evidence = Evidence.read(Path(folder))
        if scratch is None:
            options.on_evidence(Path(folder))
        evidence.standings = patrol.standings
        return Gathered(code, evidence, is_timed_out)


class _Hung(Exception):
    """The ranks wait for each other for ever."""


def _require_progress(patrol: Patrol) -> None:
    if patrol.look() is not None:
        raise _Hung


def _wait(process: subprocess.Popen[bytes], wait: Callable[[], int], *, patrol: Patrol) -> tuple[int, bool]:
    """Wait for the end; return the exit code, and whether the time was up.

    Ctrl-C reaches the script too, and SIGTERM is passed on to it as such. What the script has shown until
    then is judged. A job that hangs is ended: 0, as it did not fail.
    """
    try:
        with _passing_on(process):
            code = wait()
            patrol.read_last()
            return code, False
    except _Hung:
        _end_hung(process, patrol)
        return 0, False
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # the script writes the rest of its evidence
        return _wait_for_interrupted(process), True
    except KeyboardInterrupt:
        return _wait_for_interrupted(process), False


def _wait_for_interrupted(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(_PATIENCE_S)
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        process.kill()
        process.wait()
        return _INTERRUPTED


def _end_hung(process: subprocess.Popen[bytes], patrol: Patrol) -> None:
    """End the ranks of a job that hangs, also those that are stopped; torchrun ends after them."""
    for item in patrol.standings:
        with suppress(ProcessLookupError):
            os.kill(item.pid, signal.SIGKILL)
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def _passing_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Interrupt the script if this process is asked to end: the script writes the rest of its evidence."""

    def interrupt(*_: Any) -> None:
        process.send_signal(signal.SIGINT)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # others cannot handle signals
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
