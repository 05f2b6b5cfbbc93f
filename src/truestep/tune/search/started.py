"""A script that was started in a fresh copy of the working folder, in a group of processes of its own.

Owns how tune starts and ends scripts. What they are told and tell is left to `race` and `profile`.
"""

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from truestep import watch
from truestep.watch.launch.scratch import Scratch, tail_of


@dataclass(frozen=True, kw_only=True)
class Started:
    """The process, the folder with its evidence, and what it prints."""

    process: subprocess.Popen[Any]
    folder: Path
    log: Path

    @property
    def tail(self) -> str:
        """The last lines that the script printed, unless its output was shown."""
        return tail_of(self.log)

    def end(self) -> int:
        """End the process and its workers, whatever is left of them; return the exit code."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.wait()


def start(
    script: watch.Script,
    scratch: Scratch,
    *,
    plan: watch.Plan,
    show: IO[Any] | None = None,
    environment: Mapping[str, str | None] | None = None,
    channel: int | None = None,
) -> Started:
    """Start a script in a fresh copy of the working folder; `channel` is a descriptor that it inherits."""
    scratch.renew()
    folder = scratch.new_folder()
    log = folder / "output.txt"
    with log.open("wb") as kept:
        goes_to = kept if show is None else show
        process = watch.start(
            script,
            plan=plan,
            folder=folder,
            scratch=scratch,
            environment=environment,
            stdin=subprocess.DEVNULL,
            stdout=goes_to,
            stderr=goes_to,
            pass_fds=() if channel is None else (channel,),
            start_new_session=True,  # a group of its own: workers are stopped and ended with it
        )
    return Started(process=process, folder=folder, log=log)
