"""Running a script to see its values: in place, once, as `python SCRIPT` would.

Owns the plan and the wait. What is recorded is in `in_script.recording`.
"""

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from truestep import watch
from truestep.show.listing import Listing, read_listing
from truestep.watch.launch import following
from truestep.watch.launch.following import OnStep, ignore_steps

_PATIENCE_S = 30.0


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """How the script is run."""

    steps: int | None = None
    """Optimizer steps after which it is stopped."""
    also: tuple[str, ...] = ()
    """Packages whose code is shown too."""
    stdout: int | IO[Any] | None = None
    stderr: int | IO[Any] | None = None


def show_script(
    script: watch.Script, *, options: ShowOptions = ShowOptions(), on_step: OnStep = ignore_steps
) -> Listing:
    """Run a script and return its lines with their values; Ctrl-C ends it and keeps what it showed."""
    settings = ({"also": list(options.also)},)
    plan = watch.Plan(
        steps=options.steps,
        settings=tuple(("truestep.show.in_script.recording:record", value) for value in settings),
    )
    with tempfile.TemporaryDirectory(prefix="truestep-show-") as folder:
        process = watch.start(
            script, plan=plan, folder=Path(folder), stdout=options.stdout, stderr=options.stderr
        )
        try:
            following.wait(process, Path(folder), plan=plan, on_step=on_step)
        except KeyboardInterrupt:
            _wait_for_interrupted(process)
        return read_listing(Path(folder))


def _wait_for_interrupted(process: "subprocess.Popen[bytes]") -> None:
    try:
        process.wait(_PATIENCE_S)
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        process.kill()
        process.wait()
