"""A kill in the middle of a save, on purpose: the file has half of its bytes then.

Owns which save is torn. Whether the script can be started again after that is left to others.
"""

import os
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from truestep.watch.script.tape import Tape


def tear(value: Sequence[Any], tape: Tape) -> None:
    """Kill this process when it saves after so many steps: to one of these files, if any are given."""
    step, paths = value
    tape.listen(saved=partial(_tear, tape, step, {os.path.realpath(path) for path in paths}))


def _tear(tape: Tape, step: int, paths: set[str], path: str | None) -> None:
    if tape.num_steps < step or path is None or not Path(path).is_file():
        return
    if paths and os.path.realpath(path) not in paths:
        return
    # Files are written from their beginning to their end: a kill leaves the first part.
    os.truncate(path, Path(path).stat().st_size // 2)
    tape.flush()
    os.kill(os.getpid(), signal.SIGKILL)
