"""Evidence of a script for tests: run in a process that is forked from one with torch imported already.

Starting Python and importing torch takes seconds; a fork takes none. What is observed is the same.
"""

import atexit
import multiprocessing
import os
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

from truestep.rules import Evidence, Judgement, check_plan, find_rules
from truestep.rules.examine import judge_closely
from truestep.watch import Plan

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["torch._dynamo", "torch.utils.data", "torch.distributed", "truestep.watch.engine"]
)


class Gathered:
    """What a script left: its exit code, what it printed, and the evidence."""

    def __init__(self, code: int, output: str, evidence: Evidence) -> None:
        self.code = code
        self.output = output
        self.evidence = evidence


def _work(settings: dict[str, Any], folder: str, arguments: list[str]) -> None:
    os.chdir(folder)
    multiprocessing.set_start_method(
        "fork", force=True
    )  # as it is in a process that was not forked from ours
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        stream.flush()
        with Path("output").open("ab") as file:
            os.dup2(file.fileno(), number)
    sys.orig_argv[:] = [sys.executable, "-c", "code", *arguments]
    sys.argv[:] = ["-c", *arguments]
    sys.path.insert(0, "")
    main = types.ModuleType("__main__")
    from truestep.watch.become import become

    vars(main).update({"sys": sys, "become": become, "__builtins__": __builtins__})
    sys.modules["__main__"] = main
    code = 0
    try:
        become(settings)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - shown as Python would
        sys.excepthook(*sys.exc_info())
        code = 1
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run_script(script: Path, *arguments: str, plan: Plan | None = None, timeout_s: float = 120.0) -> Gathered:
    """Run a script to its end and return what it left."""
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder, "evidence")
        kept.mkdir()
        place = Path(folder, "place")
        place.mkdir()
        settings = {
            "script": str(script.absolute()),
            "module": False,
            "folder": str(kept),
            "plan": (plan or check_plan()).as_fields(),
        }
        process = _CONTEXT.Process(target=_work, args=(settings, str(place), list(arguments)))
        process.start()
        process.join(timeout_s)
        if process.is_alive():
            process.kill()
            raise TimeoutError(f"{script} did not end within {timeout_s} s")
        output = (place / "output").read_text(errors="replace")
        evidence = Evidence.read(kept)
        for source in evidence.files:  # the script of an example may be gone later
            if Path(source).exists():
                evidence.texts[source] = Path(source).read_text()
        return Gathered(process.exitcode or 0, output, evidence)


def judged(script: Path) -> tuple[Gathered, Judgement]:
    """Run a script and judge it, as `truestep check` does."""
    found = run_script(script)
    told = judge_closely(
        find_rules(), found.evidence, replay=lambda plan: run_script(script, plan=plan).evidence
    )
    return found, told


def run_text(text: str, *, name: str = "example.py") -> Gathered:
    """Run a script given as text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_text(text)
        return run_script(path)


def expected(text: str) -> dict[str, set[int]]:
    """Return the lines that a script marks with `# expect: CODE`, by code."""
    found: dict[str, set[int]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        _, mark, codes = line.partition("# expect: ")
        for code in codes.replace(",", " ").split() if mark else ():
            found.setdefault(code, set()).add(number)
    return found
