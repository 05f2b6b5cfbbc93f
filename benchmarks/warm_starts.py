"""Claim: `check` and `verify` take the time of a few bare runs, and warm starts have the bits of cold ones.

Runs each script bare, under `check`, with `verify` as it is, and with `verify` that starts each run cold.
Scripts: some of tests/corpus/clean, which repeat, and causes of benchmarks/corpus that two plain runs reveal.
Compared are the digests of all steps, and seconds with the bare script's: `check` may add 2 s, a `verify`
that says "same" may take two bare runs and 3 s, and one that names a cause five bare runs and 5 s.
Exit code: 0 all digests are equal and the medians are within these budgets, 1 not.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

from measure import Claim, Row, Sheet, report

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks" / "corpus"))

from index import CASES  # noqa: E402

_WARM = "from truestep.cli import main; main()"
_COLD = (
    "import truestep.watch.launch.preloaded as p; prepare = p.Pool.prepare; "
    "p.Pool.prepare = lambda pool, *a, **k: setattr(pool, 'reason', 'measured'); " + _WARM
)
MAX_S = 900
BUDGETS = {"check": (1, 2.0), "True": (2, 3.0), "False": (5, 5.0)}
"""Bare runs and seconds for `check`, and for `verify` that says same, or not."""


def seconds_of(words: list[str]) -> tuple[float, str]:
    """Run a command in an empty folder; return how long it took and what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        begun = perf_counter()
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=MAX_S)
        return perf_counter() - begun, done.stdout


def verify(code: str, script: Path) -> dict[str, Any]:
    """Return what verify says, with its seconds."""
    seconds, text = seconds_of([sys.executable, "-c", code, "verify", "--format", "json", str(script)])
    said: dict[str, Any] = json.loads(text)
    return {**said, "seconds": seconds}


def measure(script: Path) -> Row:
    """Return one row: seconds of the bare script, ratios of verify, and whether digests are equal."""
    bare, _ = seconds_of([sys.executable, str(script)])
    checked, _ = seconds_of([sys.executable, "-c", _WARM, "check", "--format", "json", str(script)])
    warm, cold = verify(_WARM, script), verify(_COLD, script)
    digests = [sorted({run["digest"] for run in said["runs"]}) for said in (warm, cold)]
    has_equal = digests[0] == digests[1] if cold["same"] else warm["same"] == cold["same"]
    same = str(warm["same"])
    return {
        "script": script.stem,
        "same": same,
        "bare s": bare,
        "check / bare": checked / bare,
        "verify / bare": warm["seconds"] / bare,
        "cold / bare": cold["seconds"] / bare,
        "check over budget, s": over_budget("check", checked, bare),
        "verify over budget, s": over_budget(same, warm["seconds"], bare),
        "equal": "yes" if has_equal else "NO",
        "started cold": warm["cold_start"] or "",
    }


def over_budget(what: str, seconds: float, bare: float) -> float:
    """Return by how much a command takes longer than it may; negative is quicker."""
    num_runs, more_s = BUDGETS[what]
    return seconds - num_runs * bare - more_s


def main() -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clean", type=int, default=10, help="how many scripts that repeat")
    parser.add_argument("--causes", type=int, default=10, help="how many that do not")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    os.environ.pop("PYTHONHASHSEED", None)
    clean = sorted((ROOT / "tests" / "corpus" / "clean").glob("*.py"))
    step = max(1, len(clean) // max(1, given.clean))
    causes = [case.script for case in CASES if case.mode == "twice" and not case.is_racy]
    rows = []
    for script in [*clean[::step][: given.clean], *causes[: given.causes]]:
        rows.append(measure(script))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    claims = [Claim(text="scripts with other digests when started warm", found=_count(rows), limit=0)]
    for what, (num_runs, more_s) in BUDGETS.items():
        key = f"{'check' if what == 'check' else 'verify'} over budget, s"
        over = [float(row[key] or 0) for row in rows if what in ("check", row["same"])]
        if over:
            name = "check" if what == "check" else f"verify, same: {what}"
            text = f"{name}: seconds over {num_runs} bare runs and {more_s:.0f} s, median"
            claims.append(Claim(text=text, found=statistics.median(over), limit=0))
    sheets = [Sheet(title="check and verify in seconds", rows=rows)]
    return report("warm_starts", sheets=sheets, claims=claims, as_json=given.json)


def _count(rows: list[Row]) -> float:
    return float(sum(row["equal"] != "yes" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
