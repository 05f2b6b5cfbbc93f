"""How tests run a script in a fork of their own process, bare or watched, with something broken in it."""

import contextlib
import os
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from truestep import watch
from truestep.check import check_plan

_LEAVE = os._exit
"""Kept: a test may take every name away that is observed."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What a script has left."""

    code: int
    output: str
    process: watch.Process | None = None


Act = Callable[[], None]


def run_forked(
    text: str, prepare: Act = lambda: None, *, is_watched: bool = False, at_end: Act = lambda: None
) -> Ended:
    """Run a script given as text; `prepare` is called before anything is observed, `at_end` after it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = folder / "script.py"
        script.write_text(text)
        (folder / "evidence").mkdir()
        pid = os.fork()
        if not pid:
            _become(script, prepare, at_end, is_watched=is_watched)
        _, status = os.waitpid(pid, 0)
        output = (folder / "output").read_text().replace(name, "")
        found = watch.read(folder / "evidence") if is_watched else []
        return Ended(
            code=os.waitstatus_to_exitcode(status), output=output, process=found[0] if found else None
        )


def _become(script: Path, prepare: Act, at_end: Act, *, is_watched: bool) -> None:
    """Be the script, and end with it: nothing of the test may go on in the fork."""
    code = 1
    try:
        file = os.open(script.with_name("output"), os.O_CREAT | os.O_WRONLY)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        os.chdir(script.parent)
        prepare()
        tape = None
        if is_watched:
            from truestep.watch.script.import_hooks import expect
            from truestep.watch.script.tape import Tape

            tape = Tape(str(script.with_name("evidence")), check_plan())
            expect(tape)
        with contextlib.suppress(SystemExit):
            exec(compile(script.read_text(), str(script), "exec"), {"__name__": "__main__"})
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        sys.settrace(None)
        if tape is not None:
            tape.close()
        at_end()
        code = 0
    except BaseException:  # noqa: BLE001 - seen in the output
        sys.settrace(None)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        _LEAVE(code)
