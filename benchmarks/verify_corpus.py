"""Claim: `truestep verify` names the line and the cause of what does not repeat, and accuses no clean script.

Runs the command on every script of benchmarks/corpus and on its twin, each in an empty folder. Right is:
called different, at a marked line (two lines off at most), with its cause. A twin must be called the same.
With --on-accelerator all of them train on the test accelerator: verdicts must be those of the CPU.
Exit code: 0 enough causes are right and no twin is called different, 1 not so, 2 bad usage.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent / "corpus"))

import index
from index import CASES, Case

from tests.accelerator import environment
from tests.accelerator.swapping import make_there, swap
from tests.patches import difference, patch_of

MAX_S = 900
NUM_RACY_RUNS = 4
MAX_LINES_OFF = 2
COMMAND = "from truestep.cli import main; main()"
CALLED = {"scatter-order": "racy-operation", "unordered-sum": "object-set-order"}
"""What verify calls a cause where the corpus has another word for it."""
LEFT_OUT = ("PYTHONHASHSEED", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "MALLOC_PERTURB_", "CI", "COMPILE")
"""Set around us, they would decide what is found."""


def options(case: Case) -> list[str]:
    """The options that run a script in the way which reveals its cause."""
    if case.mode == "twice":
        return ["--runs", str(NUM_RACY_RUNS)] if case.is_racy else []
    if case.mode == "kill":
        several = ["--processes", str(case.num_processes)] if case.num_processes > 1 else []
        return ["--kill", *several]
    if case.mode == "environment":
        changed = [f"{name}={value}" for given in case.environments for name, value in given.items() if value]
        return [word for text in changed for word in ("--env", text)]
    return [f"--{case.mode}", ",".join(map(str, case.values))]


def _placed(path: Path) -> str:
    text = path.read_text()
    placed = swap(text) or make_there(text)
    if placed is None:
        raise SystemExit(f"{path.name}: no model or batch is found in its text")
    return placed.replace(".numpy()", ".cpu().numpy()")


def place(folder: Path) -> None:
    """Copy the corpus, with models and batches on the test accelerator, and use the copy."""
    for kind in ("causes", "patches"):
        (folder / kind).mkdir()
    for case in CASES:
        texts = [_placed(path) for path in (case.script, case.twin)]
        script = folder / "causes" / case.script.name
        script.write_text(texts[0])
        patch_of(script).write_text(difference(*texts, name=script.name))
    index.FOLDER = folder
    os.environ.update(environment())


def verify(script: Path, case: Case) -> dict[str, Any]:
    """Run the command; return what it says, with its exit code and how long it took."""
    variables = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
    words = [sys.executable, "-c", COMMAND, "verify", "--format", "json", *options(case), str(script)]
    begun = perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            words, cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=MAX_S
        )
    try:
        said = json.loads(done.stdout)
    except ValueError:
        said = {"same": None, "first_difference": None, "reason": done.stderr[-2000:]}
    return {**said, "code": done.returncode, "seconds": round(perf_counter() - begun, 1)}


def judge(case: Case) -> dict[str, Any]:
    """Verify a script and its twin, and hold both against what is known."""
    ours, theirs = verify(case.script, case), verify(case.twin, case)
    found = ours["first_difference"] or {}
    line = found.get("line")
    is_place = found.get("file") == str(case.script) and line is not None
    is_near = is_place and any(abs(line - marked) <= MAX_LINES_OFF for marked in case.lines)
    is_cause = found.get("name") == CALLED.get(case.cause, case.cause)
    row = {
        "cause": case.cause,
        "mode": case.mode,
        "different": ours["code"] == 1,
        "line": line,
        "marked": list(case.lines),
        "line_right": bool(is_near),
        "named": found.get("name"),
        "cause_right": is_cause,
        "proved": found.get("proved", False),
        "operation": found.get("operation"),
        "right": ours["code"] == 1 and bool(is_near) and is_cause,
        "twin": {0: "same", 1: "different"}.get(theirs["code"], "not told"),
        "reason": ours.get("reason") or theirs.get("reason"),
        "twin_found": theirs["first_difference"],
        "seconds": ours["seconds"],
        "twin_seconds": theirs["seconds"],
    }
    print(f"{case.cause}: {'right' if row['right'] else 'WRONG'}, twin {row['twin']}", file=sys.stderr)
    return row


def render(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The results as a table."""
    table = Table(title="truestep verify on the corpus", title_justify="left")
    for name in ("cause", "verdict", "line", "marked", "named", "proved", "twin", "s", "twin s"):
        table.add_column(name, justify="right" if name.endswith("s") and len(name) < 7 else "left")
    for row in rows:
        table.add_row(
            row["cause"],
            "different" if row["different"] else "[red]not different[/]",
            str(row["line"]) if row["line_right"] else f"[red]{row['line']}[/]",
            " ".join(map(str, row["marked"])),
            str(row["named"]) if row["cause_right"] else f"[red]{row['named']}[/]",
            "yes" if row["proved"] else "no",
            row["twin"] if row["twin"] == "same" else f"[red]{row['twin']}[/]",
            str(row["seconds"]),
            str(row["twin_seconds"]),
        )
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", help="causes, with commas between them")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument("--at-least", type=int, help="how many must be right; 22 of 24 if not given")
    parser.add_argument("--on-accelerator", action="store_true", help="train on the test accelerator")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    args = parser.parse_args()
    known = {case.cause: case for case in CASES}
    names = args.only.split(",") if args.only else list(known)
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"no such cause: {', '.join(unknown)}. Choose from {', '.join(known)}")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.jobs) as pool:
        if args.on_accelerator:
            place(Path(folder))
        rows = list(pool.map(lambda name: judge(known[name]), names))
    at_least = -(-len(rows) * 22 // 24) if args.at_least is None else args.at_least
    num_right = sum(row["right"] for row in rows)
    num_accused = sum(row["twin"] == "different" for row in rows)
    holds = num_right >= at_least and num_accused == 0
    if args.json:
        figures = {"right": num_right, "of": len(rows), "at_least": at_least, "twins_accused": num_accused}
        print(json.dumps({"holds": holds, **figures, "cases": rows}, indent=2))
    else:
        Console(width=None if sys.stdout.isatty() else 130).print(render(rows))
        print(f"{num_right} of {len(rows)} right (at least {at_least}), {num_accused} twins called different")
        for row in rows:
            if row["reason"]:
                print(f"{row['cause']}: {row['reason']}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
