"""Claim: `truestep show` makes its page for other people's scripts, and changes nothing that they print.

Runs public scripts bare, under `show`, and bare again, each in a fresh copy with all generators seeded at the
start. Where both bare runs print the same, `show` must leave the same output. Time is that of the processor,
against the larger of the two bare runs; memory is the largest resident size of the run.
Results go to --results, one line a script, and what is in there is not tried again.
Exit code: 0 all claims hold, 1 one fails, 2 one cannot be told.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import wild_scripts
from gate import WILD
from measure import Claim, Row, Sheet, report
from wild_scripts import MIRROR, CannotFetch, Script

IMPORT = re.compile(r"^(import torch|from torch\b.* import [^(]*\w)[ \t]*$", re.MULTILINE)
SEEDS = (
    r"\g<1>; import random as _r, numpy as _n, torch as _t; _r.seed(1); _n.random.seed(1); "
    "_t.manual_seed(1)"
)
"""Behind the first line that imports torch: no line moves."""
TIMES = re.compile(
    r"\d+(\.\d+)? ?(s|ms|sec\w*|min\w*|it/s|samples/s)\b|\d+:\d\d(:\d\d)?(\.\d+)?|0x[0-9a-f]+|\S*/\S*"
)
"""Durations, addresses and paths, which differ from run to run."""
MAX_TIME, MAX_MORE_S = 1.1, 5.0


@dataclass(frozen=True, kw_only=True)
class Ran:
    """One run: what it printed, and what it cost."""

    code: int | None
    out: list[str]
    errors: str
    cpu_s: float
    peak_mb: float
    page_kb: float = 0.0


def run(script: Script, *, mirror: Path, is_shown: bool) -> Ran:
    """Run a script in a fresh copy."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "in")
        path = wild_scripts.set_up(script, folder, mirror=mirror)
        path.write_text(IMPORT.sub(SEEDS, path.read_text(), count=1))
        page = Path(name, "show.html")
        shown = [
            sys.executable,
            "-m",
            "truestep",
            "show",
            "--output",
            str(page),
            str(path),
            *script.arguments,
        ]
        command = shown if is_shown else [sys.executable, str(path), *script.arguments]
        measured = [*("/usr/bin/env", "time", "-f", "%U %S %M", "-o", str(Path(name, "cost"))), *command]
        code, out, errors = wild_scripts.run(measured, script, folder)
        user, system, peak = Path(name, "cost").read_text().split()[-3:]
        return Ran(
            code=code,
            out=[TIMES.sub("#", line.split("\r")[-1].strip()) for line in out.splitlines()],
            errors=errors,
            cpu_s=float(user) + float(system),
            peak_mb=float(peak) / 1024,
            page_kb=page.stat().st_size / 1024 if page.exists() else 0.0,
        )


def try_script(script: Script, *, mirror: Path) -> dict[str, Any]:
    """Run a script bare, under `show` and bare again."""
    row: dict[str, Any] = {"script": script.name}
    first = run(script, mirror=mirror, is_shown=False)
    if first.code:
        return {**row, "state": "does not run bare", "why": first.errors[-300:]}
    shown, second = (run(script, mirror=mirror, is_shown=is_shown) for is_shown in (True, False))
    if shown.code or not shown.page_kb:
        return {**row, "state": "broken", "why": (shown.errors + "\n".join(shown.out))[-300:]}
    state, why = "not comparable: two bare runs differ", ""
    if first.out == second.out:
        lost = [line for line in first.out if line not in shown.out]
        state, why = ("differs", lost[0][:200]) if lost else ("same output", "")
    bare_s = max(first.cpu_s, second.cpu_s)
    return {
        **row,
        "state": state,
        "why": why,
        "bare_s": bare_s,
        "show_s": shown.cpu_s,
        "page_kb": shown.page_kb,
        "more_mb": shown.peak_mb - max(first.peak_mb, second.peak_mb),
    }


def claims_of(rows: Sequence[Row]) -> list[Claim]:
    """Return what is claimed of all that ran bare."""
    ran = [row for row in rows if row["state"] != "does not run bare"]
    compared = [row for row in ran if row["state"] in ("same output", "differs")]
    over = [float(r["show_s"]) - MAX_TIME * float(r["bare_s"]) for r in ran if "show_s" in r]  # type: ignore[arg-type]
    states = [row["state"] for row in rows]
    return [
        Claim(text=f"scripts broken by show, of {len(ran)}", found=states.count("broken"), limit=0),
        Claim(text=f"outputs changed, of {len(compared)} compared", found=states.count("differs"), limit=0),
        Claim(
            text="most seconds above 1.1 times the bare run", found=max(over, default=None), limit=MAX_MORE_S
        ),
        Claim(
            text="the same, in the median", found=statistics.median(over) if over else None, limit=MAX_MORE_S
        ),
    ]


def main() -> int:
    """Try the scripts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scripts", default=",".join(WILD), help="names, with commas between")
    default = os.environ.get(MIRROR, str(Path.home() / ".cache/truestep-wild"))
    parser.add_argument("--mirror", type=Path, default=default)
    parser.add_argument("--results", type=Path, default=Path("show-results.jsonl"))
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    os.environ["PYTHONHASHSEED"] = "0"  # the order of sets
    lines = asked.results.read_text().splitlines() if asked.results.exists() else []
    rows = [json.loads(line) for line in lines]
    for script in wild_scripts.choose(asked.scripts):
        if script.name in {row["script"] for row in rows}:
            continue
        try:
            rows.append(try_script(script, mirror=asked.mirror))
        except (CannotFetch, subprocess.SubprocessError) as error:
            print(f"{script.name}: {error}", file=sys.stderr)
            continue
        with asked.results.open("a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
        print(script.name, rows[-1]["state"], rows[-1]["why"], file=sys.stderr, flush=True)
    keys = ("script", "state", "bare_s", "show_s", "more_mb", "page_kb", "why")
    table = [{key: row.get(key) for key in keys} for row in rows]
    return report(
        "show_wild", sheets=[Sheet(title="scripts", rows=table)], claims=claims_of(rows), as_json=asked.json
    )


if __name__ == "__main__":
    sys.exit(main())
