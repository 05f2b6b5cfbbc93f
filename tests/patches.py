"""Repaired scripts: each is a script with a mistake, and a small patch of the same name.

Owns how a patch is applied. `python -m tests.patches BUGGY.py REPAIRED.py` writes one from two scripts.
"""

import atexit
import difflib
import re
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path


def apply(text: str, patch: str) -> str:
    """Return a text with a unified diff applied; an error if a line is not where the diff expects it."""
    lines = text.splitlines(keepends=True)
    result: list[str] = []
    at = 0
    for line in patch.splitlines(keepends=True)[2:]:
        hunk = re.match(r"@@ -(\d+)", line)
        if hunk:
            start = int(hunk[1]) - 1
            result += lines[at:start]
            at = start
        elif line[0] == "+":
            result.append(line[1:])
        else:
            if lines[at : at + 1] != [line[1:]]:
                raise ValueError(
                    f"the patch expects {line[1:]!r} in line {at + 1}, found {lines[at : at + 1]}"
                )
            result += [line[1:]] if line[0] == " " else []
            at += 1
    return "".join(result + lines[at:])


def patch_of(script: Path) -> Path:
    """Return the path of a script's patch: in the folder `patches` beside the script's."""
    return script.parent.with_name("patches") / f"{script.stem}.patch"


def repaired(script: Path) -> str:
    """Return a script without its mistake."""
    return apply(script.read_text(), patch_of(script).read_text())


@cache
def _folder() -> Path:
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder, "twins")


def write_repaired(script: Path) -> Path:
    """Write a script without its mistake, in a folder `twins` that lasts as long as this process."""
    path = _folder() / script.name
    path.parent.mkdir(exist_ok=True)
    path.write_text(repaired(script))
    return path


def difference(script: str, twin: str, *, name: str) -> str:
    """Return the patch that makes the second text of the first."""
    lines = (text.splitlines(keepends=True) for text in (script, twin))
    return "".join(difflib.unified_diff(*lines, f"a/{name}", f"b/{name}", n=1))


if __name__ == "__main__":
    buggy, fixed = map(Path, sys.argv[1:])
    patch_of(buggy).write_text(difference(buggy.read_text(), fixed.read_text(), name=buggy.name))
