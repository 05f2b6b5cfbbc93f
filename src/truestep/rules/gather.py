"""Gathering: one run of a script under observation, kept as rules need it.

Owns the plan. What is observed and how is in `truestep.watch`.
"""

import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from truestep import watch
from truestep.rules.evidence import Evidence

_LAST_LOOKED_AT = 2
_PATIENCE_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Script:
    """What is run: as `python PATH ARGUMENTS`, or `python -m PATH ARGUMENTS`."""

    path: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False


def check_plan(steps: int | None = None) -> watch.Plan:
    """Return what is kept: all moments, and each operation of the first steps without its values."""
    return watch.Plan(inspect=True, operations=(0, _LAST_LOOKED_AT), bits="none", steps=steps)


def gather(
    script: Script,
    *,
    plan: watch.Plan,
    before: Sequence[str] = (),
    stdout: int | IO[Any] | None = None,
    is_quiet: bool = False,
) -> tuple[int, Evidence]:
    """Run a script to its end and return its exit code and the evidence.

    `before` stands before the command, as `torchrun --nproc-per-node 2 --no-python` does. With `is_quiet`
    nothing is shown of what the script prints.
    """
    with tempfile.TemporaryDirectory(prefix="truestep-check-") as folder:
        words = watch.command(
            script.path, script.arguments, plan=plan, folder=Path(folder), module=script.is_module
        )
        if is_quiet:
            process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        else:
            process = subprocess.Popen([*before, *words], stdout=stdout)
        return _wait(process), Evidence.read(Path(folder))


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end. Ctrl-C reaches the script too: what it has shown until then is judged."""
    try:
        return process.wait()
    except KeyboardInterrupt:
        try:
            return process.wait(_PATIENCE_S)
        except (KeyboardInterrupt, subprocess.TimeoutExpired):
            process.kill()
            return process.wait()
