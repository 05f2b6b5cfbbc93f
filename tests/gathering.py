"""Evidence of a script for tests: run under observation, and evaluated as `truestep check` does."""

import functools
import os
import re
import subprocess
import tempfile
from pathlib import Path

from truestep.check import Evaluation, check_plan
from truestep.check.examine import evaluate_closely
from truestep.rules import Evidence, find_rules
from truestep.watch import Plan, command

_FRAMEWORKS = re.compile(r"^(?:from|import) (?:lightning|transformers|accelerate)\b", re.MULTILINE)


class Gathered:
    """What a script left: its exit code, what it printed, and the evidence."""

    def __init__(self, code: int, output: str, evidence: Evidence) -> None:
        self.code = code
        self.output = output
        self.evidence = evidence


def run_script(script: Path, *arguments: str, plan: Plan | None = None, timeout_s: float = 120.0) -> Gathered:
    """Run a script to its end and return what it left."""
    with tempfile.TemporaryDirectory() as folder:
        kept, place = Path(folder, "evidence"), Path(folder, "place")
        kept.mkdir()
        place.mkdir()
        words = command(script.absolute(), arguments, plan=plan or check_plan(), folder=kept)
        done = subprocess.run(
            words,
            env=os.environ | {"TRUESTEP_TESTS_SERVER": server_of(script)},
            cwd=place,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=timeout_s,
        )
        evidence = Evidence.read(kept)
        for source in evidence.files:  # the script of an example may be gone later
            if Path(source).exists():
                evidence.texts[source] = Path(source).read_text()
        return Gathered(done.returncode, done.stdout.decode(errors="replace"), evidence)


def server_of(script: Path) -> str:
    """Return which server a script is forked from: one that has imported what it imports."""
    return "frameworks" if _FRAMEWORKS.search(script.read_text()) else "torch"


_find_rules = functools.cache(find_rules)


def judged(
    script: Path, *, steps: int | None = None, timeout_s: float = 120.0
) -> tuple[Gathered, Evaluation]:
    """Run a script and judge it, as `truestep check` does; with `--steps` if a number is given."""
    run = functools.partial(run_script, script, timeout_s=timeout_s)
    found = run(plan=check_plan(steps))
    told = evaluate_closely(_find_rules(), found.evidence, replay=lambda plan: run(plan=plan).evidence)
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
