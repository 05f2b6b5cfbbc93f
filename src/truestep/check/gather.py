"""Gathering: one run of a script under observation, kept as rules need it.

Owns the plan. What is observed and how is in `truestep.watch`.
"""

import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from truestep import watch
from truestep.rules.evidence import Evidence
from truestep.watch.launch.scratch import Scratch

_LAST_LOOKED_AT = 2
_PATIENCE_S = 30.0
_INTERRUPTED = 130
"""The exit code of a script that did not end when it was asked to."""


def check_plan(steps: int | None = None) -> watch.Plan:
    """Return what is kept: all moments, and each operation of the first steps without its values."""
    return watch.Plan(inspect=True, operations=(0, _LAST_LOOKED_AT), bits="none", steps=steps)


def gather(
    script: watch.Script,
    *,
    plan: watch.Plan,
    processes: int = 1,
    stdout: int | IO[Any] | None = None,
    scratch: Scratch | None = None,
) -> tuple[int, Evidence]:
    """Run a script to its end and return its exit code and the evidence.

    Several processes are started by torchrun. With `scratch` it runs in a copy of the working folder, gets no
    input, and nothing is shown of what it prints.
    """
    with tempfile.TemporaryDirectory(prefix="truestep-check-") as folder:
        how: dict[str, Any] = {"stdout": stdout}
        if scratch is not None:
            scratch.renew()
            how = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        process = watch.start(
            script,
            plan=plan,
            folder=Path(folder),
            scratch=scratch,
            processes=processes if processes > 1 else None,
            **how,
        )
        return _wait(process), Evidence.read(Path(folder))


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end. Ctrl-C reaches the script too, and SIGTERM is passed on to it as such.

    What the script has shown until then is judged.
    """
    try:
        with _passing_on(process):
            return process.wait()
    except KeyboardInterrupt:
        try:
            return process.wait(_PATIENCE_S)
        except (KeyboardInterrupt, subprocess.TimeoutExpired):
            process.kill()
            process.wait()
            return _INTERRUPTED


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
