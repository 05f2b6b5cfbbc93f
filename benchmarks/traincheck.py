"""Claim: `truestep check` finds published silent bugs without a reference run and is right on clean scripts.

Bugs and scripts are those that the authors of TrainCheck (OSDI'25) chose and published. wild/traincheck.toml
lists all 18 bugs, and which of them a CPU and today's torch can show. Portable scripts run under `check`.
With --traincheck each is also traced and checked by TrainCheck, with the invariants that its authors
published for the bug, or with invariants inferred from the fixed script. --repeats measures what both cost.
Findings on clean and on fixed scripts are looked up in wild/judgements.jsonl, as in wild.py.
Exit code: 0 all claims hold, 1 one fails, 2 one cannot be told.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import wild_scripts
from measure import Claim, Row, Sheet, report
from wild import rows_of_findings, try_script
from wild_scripts import HERE, MIRROR, CannotFetch, Script

MANIFEST = HERE / "traincheck.toml"
MIN_FOUND = 4
"""How many of the five portable bugs have to be found at their line."""
MAX_S = 1200
"""TrainCheck gets more time than a script does: tracing all of torch is slow."""


@dataclass(frozen=True, kw_only=True)
class Bug:
    """One of TrainCheck's bugs: which finding is it, and how TrainCheck is asked about it.

    A violated invariant is the bug if its description contains `says`: others are violated too.
    """

    id: str
    what: str
    not_portable: str = ""
    script: str = ""
    reference: str = ""
    rules: tuple[str, ...] = ()
    lines: tuple[int, ...] = ()
    invariants: str = ""
    collect: tuple[str, ...] = ()
    infer: tuple[str, ...] = ()
    says: str = ""


def read_bugs() -> list[Bug]:
    """Return all bugs of the manifest."""
    entries = tomllib.loads(MANIFEST.read_text())["bugs"]
    return [
        Bug(**{key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()})
        for entry in entries
    ]


def is_found(bug: Bug, result: dict[str, Any]) -> bool:
    """Return whether a finding of the right rule stands at the bug's line."""
    return any(
        item["rule"] in bug.rules and item["line"] in bug.lines and item["severity"] != "info"
        for item in result.get("findings", ())
    )


class TrainCheck:
    """TrainCheck's commands, in an environment of its own."""

    def __init__(self, commands: Path, mirror: Path) -> None:
        self._commands, self._mirror = commands, mirror

    def find(self, bug: Bug, scripts: dict[str, Script], folder: Path) -> dict[str, Any]:
        """Check the script with the bug, and return how many invariants it violates and what that took."""
        invariants = folder / "invariants.json"
        row: dict[str, Any] = {"tool": "traincheck", "script": bug.script}
        try:
            if bug.invariants:
                self._fetch(scripts[bug.script], bug.invariants, invariants)
            else:
                self._infer(bug, scripts[bug.reference], invariants, folder)
            options = [*bug.collect, "-i", str(invariants)]
            row["collect_s"] = self._collect(scripts[bug.script], options, folder / "bug")
            command = ["traincheck-check", "-f", folder / "bug/trace", "-i", invariants]
            row["check_s"] = self._run([*command, "-o", folder / "out"], folder, dict(os.environ))
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
            return {**row, "state": "failed", "why": str(getattr(error, "output", "") or error)[-400:]}
        checked = len(invariants.read_text().splitlines())
        logs = "".join(file.read_text() for file in (folder / "out").rglob("failed.log"))
        failed = re.findall(r'"text_description": "([^"]*)"', logs)
        meant = [text for text in failed if bug.says in text]
        return {**row, "state": "ran", "meant": len(meant), "violated": len(failed), "invariants": checked}

    def _fetch(self, script: Script, name: str, target: Path) -> None:
        git = f"--git-dir={wild_scripts.git_folder(script.repository, self._mirror)}"
        command = ["git", git, "show", f"{script.commit}:{name}"]
        published = subprocess.run(command, capture_output=True, check=True, text=True).stdout
        target.write_text(published.replace("_ML_DAIKON_", "_TRAINCHECK_"))  # a field that 0.2.0 renamed

    def _infer(self, bug: Bug, script: Script, target: Path, folder: Path) -> None:
        self._collect(script, bug.collect, folder / "reference")
        traces = folder / "reference/trace"
        self._run(["traincheck-infer", "-f", traces, "-o", target, *bug.infer], folder, dict(os.environ))

    def _collect(self, script: Script, options: Sequence[str], folder: Path) -> float:
        path = wild_scripts.set_up(script, folder, mirror=self._mirror)
        for item in (folder / "site-packages").iterdir():  # it replaces PYTHONPATH by the script's folder
            if item.name != "traincheck":
                (shutil.copytree if item.is_dir() else shutil.copy)(item, path.parent / item.name)
        environment = wild_scripts.environment_of(script, folder)
        del environment["PYTHONPATH"]
        command = ["traincheck-collect", "--pyscript", path, "--output-dir", folder / "trace", *options]
        return self._run(command, path.parent, environment)

    def _run(self, command: Sequence[str | Path], folder: Path, environment: dict[str, str]) -> float:
        begun = perf_counter()
        subprocess.run(
            [str(self._commands / command[0]), *map(str, command[1:])],
            cwd=folder,
            env={**environment, "PATH": f"{self._commands}:{environment['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
            timeout=MAX_S,
        )
        return round(perf_counter() - begun, 1)


def measure_cost(
    bug: Bug, scripts: dict[str, Script], *, mirror: Path, other: TrainCheck | None, repeats: int
) -> Row:
    """Return the time of both tools as ratios to the bare script, medians of runs that take turns."""
    script = scripts[bug.script]

    def run(start: Callable[[Script, Path], list[str]]) -> float:
        with tempfile.TemporaryDirectory() as folder:
            path = wild_scripts.set_up(script, Path(folder, "in"), mirror=mirror)
            begun = perf_counter()
            wild_scripts.run(start(script, path), script, Path(folder, "in"))
            return perf_counter() - begun

    def trace() -> float:
        with tempfile.TemporaryDirectory() as folder:
            row = other.find(bug, scripts, Path(folder)) if other else {}
            return float(row.get("collect_s", 0) + row.get("check_s", 0)) or float("nan")

    turns: dict[str, Callable[[], float]] = {
        "bare": lambda: run(wild_scripts.start_bare),
        "truestep": lambda: run(wild_scripts.start_checked),
    }
    if other is not None:
        turns["traincheck"] = trace
    times: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(repeats):
        for name in random.Random(repeats).sample(sorted(turns), len(turns)):
            times[name].append(turns[name]())
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        "bug": bug.id,
        "bare_s": medians["bare"],
        **{f"{name}_ratio": medians[name] / medians["bare"] for name in turns if name != "bare"},
    }


class Results:
    """What has been run, one JSON line each; what is in there is not run again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self._rows = {(row["tool"], row["script"]): row for row in map(json.loads, lines)}

    def take(self, tool: str, script: str, run: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """Return a result, after running it if need be; None if the script cannot be fetched."""
        if (tool, script) not in self._rows:
            try:
                row = {**run(), "tool": tool, "script": script}
            except CannotFetch as error:
                print(f"{script}: {error}", file=sys.stderr)
                return None
            with self._path.open("a") as file:
                file.write(json.dumps(row) + "\n")
            self._rows[tool, script] = row
            print(tool, script, row["state"], file=sys.stderr, flush=True)
        return self._rows[tool, script]


def row_of(bug: Bug, own: dict[str, Any] | None, theirs: dict[str, Any] | None) -> Row:
    """Return what both tools report of a bug."""
    row: dict[str, Any] = {"bug": bug.id, "what": bug.what, "not portable": bug.not_portable}
    if own is not None:
        found = [f"{item['rule']} at {item['line']}" for item in own.get("findings", ())]
        row["check"] = "found" if is_found(bug, own) else "missed"
        row["findings"] = ", ".join(found)
    if theirs is not None:
        row["traincheck"] = theirs["state"]
        if theirs["state"] == "ran":
            row["traincheck"] = "found" if theirs["meant"] else "missed"
            row["violated"] = f"{theirs['violated']} of {theirs['invariants']}, {theirs['meant']} about it"
    return row


def claims_of(bugs: Sequence[Row], findings: Sequence[Row], clean: Sequence[dict[str, Any]]) -> list[Claim]:
    """Return what is claimed."""
    checked = [row for row in bugs if "check" in row]
    found = sum(row["check"] == "found" for row in checked)
    told = [row for row in findings if row["severity"] != "info"]
    ran = [row for row in clean if row["state"] != "does not run bare"]
    return [
        Claim(
            text=f"portable bugs not found, of {len(checked)}",
            found=len(checked) - found if checked else None,
            limit=max(len(checked) - MIN_FOUND, 0),
        ),
        Claim(
            text=f"findings on clean and fixed scripts that are false or not judged, of {len(told)}",
            found=sum(row["verdict"] in ("false", "unjudged") for row in told) if ran else None,
            limit=0,
        ),
        Claim(
            text=f"clean and fixed scripts that check breaks, of {len(ran)}",
            found=sum(row["state"] == "broken" for row in ran) if ran else None,
            limit=0,
        ),
    ]


def main() -> int:
    """Run both tools on what is portable."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bugs", help="ids, with commas between; all unless given")
    parser.add_argument("--without-clean", action="store_true", help="leave out clean and fixed scripts")
    parser.add_argument("--traincheck", type=Path, help="the folder of TrainCheck's commands, as VENV/bin")
    parser.add_argument("--repeats", type=int, default=0, help="measure the cost of both this many times")
    parser.add_argument("--results", type=Path, default=Path("traincheck-results.jsonl"))
    parser.add_argument(
        "--mirror", type=Path, default=os.environ.get(MIRROR, str(Path.home() / ".cache/truestep-wild"))
    )
    parser.add_argument("--cold", action="store_true", help="start Python as users do")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    mirror, results = Path(asked.mirror), Results(asked.results)
    scripts = {script.name: script for script in wild_scripts.read_manifest(MANIFEST)}
    bugs = [bug for bug in read_bugs() if not asked.bugs or bug.id in asked.bugs.split(",")]
    other = TrainCheck(asked.traincheck.absolute(), mirror) if asked.traincheck else None
    with contextlib.nullcontext() if asked.cold else wild_scripts.quick_starts():

        def check(name: str) -> dict[str, Any] | None:
            return results.take("truestep", name, lambda: try_script(scripts[name], mirror=mirror))

        own = {bug.id: check(bug.script) for bug in bugs if bug.script}
        wanted = [name for kind in ("clean", "reference") for name in scripts if scripts[name].domain == kind]
        clean = [row for row in map(check, [] if asked.without_clean else wanted) if row is not None]
    theirs: dict[str, dict[str, Any] | None] = {}
    for bug in bugs if other is not None else ():
        if bug.script:
            with tempfile.TemporaryDirectory() as folder:
                find = lambda bug=bug, at=Path(folder): other.find(bug, scripts, at)  # noqa: E731
                theirs[bug.id] = results.take("traincheck", bug.script, find)
    costs = [
        measure_cost(bug, scripts, mirror=mirror, other=other, repeats=asked.repeats)
        for bug in bugs
        if bug.script and asked.repeats
    ]
    rows = [row_of(bug, own.get(bug.id), theirs.get(bug.id)) for bug in bugs]
    findings = rows_of_findings(clean)
    table = [{key: row.get(key) for key in ("script", "state", "steps", "why")} for row in clean]
    sheets = [
        Sheet(title="bugs", rows=rows),
        Sheet(title="clean and fixed scripts", rows=table),
        Sheet(title="findings there", rows=findings),
        *([Sheet(title="cost", rows=costs, num_digits=2)] if costs else []),
    ]
    return report("traincheck", sheets=sheets, claims=claims_of(rows, findings, clean), as_json=asked.json)


if __name__ == "__main__":
    sys.exit(main())
