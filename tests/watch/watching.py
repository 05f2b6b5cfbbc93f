"""How tests run a script bare and watched, and read the moments that its comments name."""

import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from truestep import watch

SCRIPTS = Path(__file__).parent / "scripts"


@dataclass(frozen=True, kw_only=True)
class Done:
    code: int
    stdout: str
    stderr: str


def run(words: list[str], **options: Any) -> Done:
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=240, **{"input": "", **options}
    )
    return Done(code=done.returncode, stdout=done.stdout, stderr=done.stderr)


def run_bare(script: str | Path, *arguments: str, **options: Any) -> Done:
    return run([sys.executable, str(script), *arguments], **options)


def run_watched(
    script: str | Path, *arguments: str, folder: Path, plan: watch.Plan | None = None, **options: Any
) -> Done:
    words = watch.command(script, arguments, plan=plan or watch.Plan(), folder=folder)
    return run(words, **options)


def marked(script: Path) -> dict[str, set[int]]:
    """Return the lines that comments name, by kind of moment."""
    found: dict[str, set[int]] = {}
    for number, line in enumerate(script.read_text().splitlines(), start=1):
        match = re.search(r"-> ([A-Za-z_ ]+)$", line)
        for kind in match[1].split() if match else ():
            found.setdefault(kind, set()).add(number)
    return found


def seen(process: watch.Process, script: Path) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for moment in process.moments:
        if moment.file == str(script):
            found.setdefault(type(moment.facts).__name__, set()).add(moment.line or 0)
    return found


def write(folder: Path, text: str) -> Path:
    """Write a script that is indented in the test's source."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(text).strip("\n") + "\n")
    return script
