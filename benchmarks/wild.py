"""Claim: on other people's training scripts `truestep check` breaks nothing and is right in what it reports.

Runs every script of wild/manifest.toml twice, bare and under `check`, and compares how they end. Each finding
is looked up in wild/judgements.jsonl, where somebody has judged it by reading the script: true (the author
would want to know), debatable (correct, but a matter of taste or harmless there) or false. One that is not
there is unjudged. Results go to --results, one line a script, and what is in there is not run again.
Exit code: 0 all claims hold, 1 one fails, 2 one cannot be told.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import wild_scripts
from measure import Claim, Row, Sheet, report
from wild_scripts import HERE, MIRROR, CannotFetch, Script

MIN_ERRORS, MIN_ALL = 0.98, 0.90
"""Least share of true findings among errors, and among errors and warnings together."""
NUM_COMPARED = 3
"""Lines at the end of the script's output that have to be there under `check` too, numbers aside."""
NUM_AGAIN = 4
"""How often a script is run bare again if such a line is missing."""
JUDGEMENTS = HERE / "judgements.jsonl"


def run_bare(script: Script, *, mirror: Path) -> tuple[int | None, str, str]:
    """Run a script alone; return its exit code and what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        path = wild_scripts.set_up(script, Path(folder, "in"), mirror=mirror)
        return wild_scripts.run(wild_scripts.start_bare(script, path), script, Path(folder, "in"))


def try_script(script: Script, *, mirror: Path) -> dict[str, Any]:
    """Run a script bare and checked, and return how both ended and what was found."""
    begun = perf_counter()
    code, out, errors = run_bare(script, mirror=mirror)
    row: dict[str, Any] = {"script": script.name, "bare_s": round(perf_counter() - begun, 1)}
    if code:
        return {**row, "state": "does not run bare", "why": errors[-400:]}
    with tempfile.TemporaryDirectory() as folder:
        begun = perf_counter()
        path = wild_scripts.set_up(script, Path(folder, "in"), mirror=mirror)
        command = wild_scripts.start_checked(script, path)
        _, answer, others = wild_scripts.run(command, script, Path(folder, "in"))
        row["check_s"] = round(perf_counter() - begun, 1)
        try:
            document = json.loads(answer)
        except ValueError:
            return {**row, "state": "broken", "why": (answer + others)[-400:]}
        lost = lost_lines(out, others)
        for _ in range(NUM_AGAIN):  # what it prints may differ from run to run, and not only in numbers
            lost = lost and lost & lost_lines(run_bare(script, mirror=mirror)[1], others)
        return {**row, **_state(lost, document), **_findings(document, Path(folder, "in/repository"))}


def lost_lines(out: str, others: str) -> set[str]:
    """Return the last lines of the bare run that are not printed under check."""
    return set(_mask(out.splitlines())[-NUM_COMPARED:]) - set(_mask(others.splitlines()))


def _state(lost: set[str], document: dict[str, Any]) -> dict[str, Any]:
    troubles = [*document["failed_rules"], *document["failed_observers"]]
    if document["exit_code"] or lost or troubles:
        why = f"exit {document['exit_code']}, lost {sorted(lost)}, {troubles}"
        return {"state": "broken", "why": why[:400]}
    state = "inconclusive" if document["inconclusive"] else "ran"
    return {"state": state, "why": document["inconclusive"] or ""}


def _mask(lines: Iterable[str]) -> list[str]:
    """Return lines without numbers, which differ from run to run where nothing is seeded."""
    return [
        re.sub(r"[-+]?[\d.]+(e[-+]?\d+)?|\b(nan|True|False)\b|\s+", "#", line.split("\r")[-1])
        for line in lines
        if line.strip()
    ]


def _findings(document: dict[str, Any], root: Path) -> dict[str, Any]:
    findings = []
    for item in document["findings"]:
        file = Path(item["file"] or "")
        findings.append(
            {
                "rule": item["code"],
                "severity": item["severity"],
                "file": str(file.relative_to(root)) if file.is_relative_to(root) else item["file"],
                "line": item["line"],
                "message": item["message"],
                "evidence": item["evidence"],
                "folded": [f"{one['code']}:{one['line']}" for one in item["consequences"]],
            }
        )
    return {"steps": document["steps"], "findings": findings}


def read_judgements() -> dict[tuple[str, str, str, int], tuple[str, str]]:
    """Return verdict and reason by script, rule, file and line."""
    lines = JUDGEMENTS.read_text().splitlines() if JUDGEMENTS.exists() else []
    items = [json.loads(line) for line in lines]
    return {(i["script"], i["rule"], i["file"], i["line"]): (i["verdict"], i["why"]) for i in items}


def rows_of_findings(results: Sequence[dict[str, Any]]) -> list[Row]:
    """Return all findings with their verdicts."""
    judged = read_judgements()
    rows = []
    for result in results:
        for item in result.get("findings", ()):
            key = (result["script"], item["rule"], item["file"], item["line"])
            verdict, why = judged.get(key, ("unjudged", item["message"]))
            rows.append(
                {
                    "script": result["script"],
                    "rule": item["rule"],
                    "severity": item["severity"],
                    "line": f"{Path(item['file'] or '').name}:{item['line']}",
                    "verdict": verdict,
                    "why": why,
                }
            )
    return rows


def claims_of(results: Sequence[dict[str, Any]], findings: Sequence[Row], wanted: int) -> list[Claim]:
    """Return what is claimed."""
    ran = [result for result in results if result["state"] != "does not run bare"]
    told = [row for row in findings if row["severity"] != "info"]
    errors = [row for row in told if row["severity"] == "error"]
    return [
        Claim(
            text=f"scripts that ran bare, less than wanted ({wanted})",
            found=max(wanted - len(ran), 0),
            limit=0,
        ),
        Claim(text="scripts broken by check", found=sum(row["state"] == "broken" for row in ran), limit=0),
        _precision(f"errors not true, of {len(errors)}", errors, MIN_ERRORS),
        _precision(f"errors and warnings not true, of {len(told)}", told, MIN_ALL),
        Claim(text="findings unjudged", found=sum(row["verdict"] == "unjudged" for row in told), limit=0),
    ]


def _precision(text: str, rows: Sequence[Row], least: float) -> Claim:
    wrong = sum(row["verdict"] != "true" for row in rows)
    return Claim(text=f"share of {text}", found=wrong / len(rows) if rows else None, limit=1 - least + 1e-9)


def counts_by_rule(findings: Sequence[Row]) -> list[Row]:
    """Return how many findings of each rule and severity have which verdict."""
    counts = Counter((str(row["rule"]), str(row["severity"]), str(row["verdict"])) for row in findings)
    return [
        {
            "rule": rule,
            "severity": severity,
            **{
                verdict: float(counts[rule, severity, verdict])
                for verdict in ("true", "debatable", "false", "unjudged")
            },
        }
        for rule, severity in sorted({key[:2] for key in counts})
    ]


def run_all(
    scripts: Sequence[Script], results: Path, *, mirror: Path, seconds: float
) -> list[dict[str, Any]]:
    """Run what is not in the results yet, as long as there is time, and return all results."""
    lines = results.read_text().splitlines() if results.exists() else []
    done = {item["script"]: item for item in map(json.loads, lines)}
    end = perf_counter() + seconds
    for script in scripts:
        if script.name in done or perf_counter() > end:
            continue
        try:
            done[script.name] = try_script(script, mirror=mirror)
        except CannotFetch as error:
            print(f"{script.name}: {error}", file=sys.stderr)
            continue
        with results.open("a") as file:
            file.write(json.dumps(done[script.name]) + "\n")
        print(script.name, done[script.name]["state"], file=sys.stderr, flush=True)
    names = {script.name for script in scripts}
    return [item for name, item in done.items() if name in names]


def main() -> int:
    """Run the corpus."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scripts", help="names, with commas between; all unless given")
    parser.add_argument("--blind", choices=("all", "without", "only"), default="all")
    parser.add_argument(
        "--mirror", type=Path, default=os.environ.get(MIRROR, str(Path.home() / ".cache/truestep-wild"))
    )
    parser.add_argument("--results", type=Path, default=Path("wild-results.jsonl"))
    parser.add_argument("--seconds", type=float, default=7200.0, help="start no further script after this")
    parser.add_argument("--wanted", type=int, default=100, help="how many scripts have to run")
    parser.add_argument("--cold", action="store_true", help="start Python as users do")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    scripts = wild_scripts.choose(asked.scripts, blind=asked.blind)
    with contextlib.nullcontext() if asked.cold else wild_scripts.quick_starts():
        results = run_all(scripts, asked.results, mirror=Path(asked.mirror), seconds=asked.seconds)
    findings = rows_of_findings(results)
    table = [
        {key: row.get(key) for key in ("script", "state", "steps", "bare_s", "check_s", "why")}
        for row in results
    ]
    sheets = [
        Sheet(title="scripts", rows=table),
        Sheet(title="findings", rows=findings),
        Sheet(title="by rule", rows=counts_by_rule(findings), num_digits=0),
    ]
    claims = claims_of(results, findings, asked.wanted)
    return report("wild", sheets=sheets, claims=claims, as_json=asked.json)


if __name__ == "__main__":
    sys.exit(main())
