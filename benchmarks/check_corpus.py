"""Claim: `truestep check` finds the mistakes of the corpus at their lines, and accuses no right script.

Runs every script of tests/corpus under all rules: those with one mistake each, their repaired twins, and
right ones that look wrong. Those in `ranks` run as jobs of several processes; `--ranks` runs only them.
Exit code: 0 all claims hold, 1 one fails, 2 one cannot be told.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import figures
from measure import Claim, Row, Sheet, report

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests import preloaded
from tests.gathering import judged, server_of
from tests.patches import write_repaired

CORPUS = Path(__file__).parents[1] / "tests" / "corpus"
MIN_FOUND = 0.95
MAX_S = 600


@dataclass(frozen=True, kw_only=True)
class Script:
    """A script of the corpus, and where its mistake is."""

    path: Path
    kind: str
    code: str | None = None
    lines: frozenset[int] = frozenset()
    processes: int = 1

    @staticmethod
    def read(path: Path) -> Script:
        """Read what the script marks."""
        code, lines, processes = None, set(), 2 if path.parts[-3] == "ranks" else 1
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if line.startswith("# processes: "):
                processes = int(line.split()[-1])
            if "# expect: " in line:
                code = line.split("# expect: ")[1].split()[0]
                lines.add(number)
        return Script(
            path=path, kind=path.parent.name, code=code, lines=frozenset(lines), processes=processes
        )


def run(words: Sequence[str], folder: str) -> tuple[str, float]:
    """Run a command; return what it printed and the processor time of it and its children."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop(
        "PYTHONDONTWRITEBYTECODE", None
    )  # what is installed is compiled once, torch and truestep alike
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(
            words, cwd=folder, env=environment, stdout=out, stderr=subprocess.DEVNULL, text=True
        )
        _, _, used = os.wait4(process.pid, 0)
        process.returncode = 0
        out.seek(0)
        return out.read(), used.ru_utime + used.ru_stime


def checked(script: Script) -> list[dict[str, Any]]:
    """Return what truestep says of a script, run in a fork of a process that has torch imported."""
    found, told = judged(script.path)
    troubles = [*told.failed, *found.evidence.first.troubles]
    if troubles:
        raise RuntimeError(f"{script.path.name}: {troubles}")
    return [item.as_fields() for item in told.findings]


@contextmanager
def forked_starts() -> Iterator[None]:
    """Let `sys.executable` be a Python that has torch imported."""
    before = sys.executable
    os.environ["OMP_NUM_THREADS"] = (
        "1"  # what is forked has the threads of the process that it is forked from
    )
    with tempfile.TemporaryDirectory() as folder:
        preloaded.install(Path(folder))
        preloaded.use(Path(folder))
        try:
            yield
        finally:
            sys.executable = before


def checked_as_job(script: Script) -> list[dict[str, Any]]:
    """Return what truestep says of a script that runs as several processes, forks like the others."""
    words = [sys.executable, "-m", "truestep", "check", "-v", "--format", "json"]
    words += ["--processes", str(script.processes)] if script.processes > 1 else []
    words += [str(script.path)]
    environment = os.environ | {"TRUESTEP_TESTS_SERVER": server_of(script.path)}
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        try:
            answer, _ = process.communicate(timeout=MAX_S)
        except subprocess.TimeoutExpired:
            process.terminate()  # `check` ends the job and prints what it has found
            answer, _ = process.communicate(timeout=MAX_S)
        finally:
            process.kill()
    found = json.loads(answer)
    troubles = [*found["failed_rules"], *found["failed_observers"]]
    if troubles:
        raise RuntimeError(f"{script.path.name}: {troubles}")
    findings: list[dict[str, Any]] = found["findings"]
    return findings


def judged_as_job(script: Script) -> Row:
    """Return the line of a job; one that gives no answer has found nothing, and counts as an alarm."""
    try:
        row = judge(script, checked_as_job(script))
    except (RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
        row = {**judge(script, []), "other alarms": f"no answer: {error}"[:200]}
    print(script.path.parent.name, script.path.stem, row["found"], row["other alarms"], file=sys.stderr)
    return row


def judge(script: Script, told: list[dict[str, Any]]) -> Row:
    """Return a line of the table."""
    findings = [*told, *(item for one in told for item in one["consequences"])]
    hits = [item for item in findings if item["code"] == script.code and item["line"] in script.lines]
    alarms = sorted({item["code"] for item in told if item["severity"] != "info"})
    return {
        "script": script.path.stem,
        "kind": script.kind,
        "found": None if script.code is None else float(bool(hits)),
        "step": float(hits[0]["step"]) if hits and hits[0]["step"] is not None else None,
        "other alarms": " ".join(code for code in alarms if code != script.code),
    }


def claims_of(rows: Sequence[Row]) -> list[Claim]:
    """Return what is claimed."""
    buggy = [row for row in rows if row["kind"] == "buggy"]
    right = [row for row in rows if row["kind"] != "buggy"]
    missed = sum(not row["found"] for row in buggy)
    return [
        Claim(
            text=f"mistakes not found at their line, of {len(buggy)}",
            found=missed,
            limit=int((1 - MIN_FOUND) * len(buggy)),
        ),
        Claim(
            text=f"right scripts accused, of {len(right)}",
            found=sum(bool(row["other alarms"]) for row in right),
            limit=0,
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", help="names of scripts that begin so, with commas between them")
    parser.add_argument("--ranks", action="store_true", help="only jobs of several processes")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    jobs_in = ("ranks/buggy", "ranks/clean")
    folders = jobs_in if given.ranks else ("buggy", "clean", *jobs_in)
    paths = [path for name in folders for path in sorted((CORPUS / name).glob("*.py"))]
    paths += [write_repaired(path) for path in paths if path.parent == CORPUS / "buggy"]
    scripts = [Script.read(path) for path in paths]
    if given.only:
        scripts = [item for item in scripts if item.path.stem.startswith(tuple(given.only.split(",")))]
    jobs = [item for item in scripts if item.processes > 1]
    scripts = [item for item in scripts if item.processes == 1]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        answers = list(pool.map(checked, scripts))
    rows = [judge(*item) for item in zip(scripts, answers, strict=True)]
    if not (given.only or given.ranks):
        _keep(rows)
    with forked_starts():
        rows += [judged_as_job(item) for item in jobs]
    sheets = [Sheet(title="found and accused", rows=rows), Sheet(title="in sum", rows=[_sum(rows)])]
    return report("check_corpus", sheets=sheets, claims=claims_of(rows), as_json=given.json)


def _keep(rows: Sequence[Row]) -> None:
    """Write the figures that pages state."""
    own = _sum(rows)
    names = {"found": "found", "scripts": "of", "flagged": "right scripts accused", "correct": "of right"}
    figures.write(**{f"corpus__{name}": int(float(own[key] or 0)) for name, key in names.items()})


def _sum(rows: Sequence[Row]) -> Row:
    buggy = [row for row in rows if row["kind"] == "buggy"]
    right = [row for row in rows if row["kind"] != "buggy"]
    return {
        "tool": "truestep check",
        "found": sum(float(row["found"] or 0) for row in buggy),
        "of": float(len(buggy)),
        "right scripts accused": float(sum(bool(row["other alarms"]) for row in right)),
        "of right": float(len(right)),
    }


if __name__ == "__main__":
    sys.exit(main())
