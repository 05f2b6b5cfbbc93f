"""A script bare and under `truestep check`: all that can be seen of it from outside, compared.

Owns how both are started, in folders of the same path, and what counts as a difference.
"""

import ast
import hashlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from truestep.check import check_plan
from truestep.watch import command, read

HERE = Path(__file__).parent
ODD = HERE / "odd"
_BESIDE = (HERE / "witness.py", HERE / "beside.py", ODD / "training.py")
_OURS = ("truestep.watch>", "truestep/watch/")
"""What every line about a frame of ours has in it."""
_MAX_S = 240


@dataclass(frozen=True, kw_only=True)
class Case:
    """A script, and how it is started; its first comments say so."""

    name: str
    text: str
    is_odd: bool = True
    """Whether it is as it stands: otherwise it is given seeds, and calls of modules are counted."""
    has_threads: bool = False
    """Whether two more threads run other models beside it."""

    def said(self, word: str) -> str | None:
        """Return what the comment `# word: ...` says, the empty text for `# word`, None if there is none."""
        found = re.search(rf"^# {word}(?:: (.*))?$", self.text, re.MULTILINE)
        return None if found is None else found[1] or ""

    @property
    def program(self) -> str:
        """The script with a witness in it, after what has to come first."""
        try:
            body = ast.parse(self.text).body
        except SyntaxError:
            return self.text
        last = 0
        for statement in body:
            is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            is_future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
            if not is_text and not is_future:
                break
            last = statement.end_lineno or 0
        lines = self.text.splitlines(keepends=True)
        witness = "import witness\n" if self.is_odd else "import witness; witness.seed_and_count()\n"
        witness += "import beside\n" if self.has_threads else ""
        return "".join([*lines[:last], witness, *lines[last:]])


def odd_cases() -> list[Case]:
    """Return the scripts that were written to be hard to observe."""
    paths = [path for path in sorted(ODD.glob("*.py")) if path.name != "training.py"]
    return [Case(name=path.stem, text=path.read_text()) for path in paths]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a script leaves."""

    code: int
    stdout: str
    stderr: str
    files: dict[str, str]
    num_steps: int = 0
    switched_off: tuple[str, ...] = ()
    """Observers that have failed."""

    def without_our_frames(self) -> "Outcome":
        """Return it without the lines that show a frame of ours."""
        lines = self.stdout.splitlines(keepends=True)
        kept = [line for line in lines if not any(mark in line for mark in _OURS)]
        return replace(self, stdout="".join(kept))


def run(case: Case, folder: Path, *, is_watched: bool) -> Outcome:
    """Run a script in a new working folder at the same path, and return what it leaves."""
    work, evidence = folder / "work", folder / "evidence"
    for place in (work, evidence):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
    for path in _BESIDE:
        shutil.copy(path, work)
    is_module = case.said("module") is not None
    script = work / ("package/__main__.py" if is_module else "script.py")
    script.parent.mkdir(exist_ok=True)
    script.write_text(case.program)
    if is_module:
        script.with_name("__init__.py").touch()
    before = set(work.rglob("*"))
    name, arguments = "package" if is_module else str(script), shlex.split(case.said("arguments") or "")
    words = [sys.executable, *(["-m"] if is_module else []), name, *arguments]
    if is_watched:
        words = command(name, arguments, plan=check_plan(), folder=evidence, module=is_module)
    given = (case.said("input") or "").replace("\\n", "\n")
    done = subprocess.run(
        words, cwd=work, input=given.encode(), capture_output=True, check=False, timeout=_MAX_S
    )
    processes = read(evidence) if is_watched else []
    return Outcome(
        code=done.returncode,
        stdout=done.stdout.decode(errors="backslashreplace"),
        stderr=done.stderr.decode(errors="backslashreplace"),
        files={
            str(path.relative_to(work)): _look_at(path) for path in _files(work, case) if path not in before
        },
        num_steps=max((process.num_steps for process in processes), default=0),
        switched_off=tuple(text for process in processes for text in process.switched_off),
    )


def _files(folder: Path, case: Case) -> Iterator[Path]:
    """Yield what is compared: not what holds times, if the script says in which folder that is."""
    left_out = {"__pycache__", case.said("timed")}
    return (path for path in sorted(folder.rglob("*")) if left_out.isdisjoint(path.parts))


def _look_at(path: Path) -> str:
    if path.is_symlink():
        return f"link to {path.readlink()}"
    mode = f"{path.stat().st_mode:o}"
    if path.is_dir():
        return mode
    data = path.read_bytes()
    return f"{mode} {data.decode() if path.name == 'witness.txt' else hashlib.sha256(data).hexdigest()[:16]}"


def differences(case: Case, bare: Outcome, watched: Outcome) -> list[str]:
    """Return what is not equal, in words; a script that says so may show frames of ours."""
    if case.said("ours") is not None:
        watched = watched.without_our_frames()
    found = [f"exit code {bare.code}, watched {watched.code}"] if bare.code != watched.code else []
    if case.said("stopped") is not None:  # check shows no traceback of the user's own Ctrl-C
        assert bare.stderr.endswith("KeyboardInterrupt\n"), bare.stderr
        bare = replace(bare, stderr="")
    for name in ("stdout", "stderr"):
        found += _compare(name, getattr(bare, name), getattr(watched, name))
    for name in sorted(bare.files.keys() | watched.files.keys()):
        found += _compare(name, bare.files.get(name, "no such file"), watched.files.get(name, "no such file"))
    return found


def _compare(name: str, bare: str, watched: str) -> list[str]:
    """Return the first line that differs."""
    if bare == watched:
        return []
    pairs = zip([*bare.splitlines(), "the end"], [*watched.splitlines(), "the end"], strict=False)
    number, (alone, together) = next(
        ((number, pair) for number, pair in enumerate(pairs, start=1) if pair[0] != pair[1]), (0, ("", ""))
    )
    return [f"{name}, line {number}: {alone!r}, watched {together!r}"]


def try_case(case: Case, folder: Path) -> tuple[list[str], Outcome, Outcome]:
    """Run a script both ways; return the differences, and what both have left."""
    bare, watched = run(case, folder, is_watched=False), run(case, folder, is_watched=True)
    return differences(case, bare, watched), bare, watched
