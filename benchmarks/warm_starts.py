"""Claim: `truestep verify` starts runs warm, with the bits of a cold start, in the time of a few bare runs.

Runs each script bare, then `verify` as it is and `verify` with every run started cold, in turns. Scripts:
some of tests/corpus/clean, which repeat, and the causes of benchmarks/corpus that two plain runs reveal.
Compared are the digests of all steps, and seconds as ratios to the bare script.
Exit code: 0 all digests are equal, 1 one differs.
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
    warm, cold = verify(_WARM, script), verify(_COLD, script)
    digests = [sorted({run["digest"] for run in said["runs"]}) for said in (warm, cold)]
    has_equal = digests[0] == digests[1] if cold["same"] else warm["same"] == cold["same"]
    return {
        "script": script.stem,
        "same": str(warm["same"]),
        "bare s": bare,
        "warm / bare": warm["seconds"] / bare,
        "cold / bare": cold["seconds"] / bare,
        "over two bare runs, s": warm["seconds"] - 2 * bare,
        "equal": "yes" if has_equal else "NO",
        "started cold": warm["cold_start"] or "",
    }


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
    for same in ("True", "False"):
        ratios = [float(row["warm / bare"] or 0) for row in rows if row["same"] == same]
        if ratios:
            text = f"median ratio to the bare script, same: {same}"
            claims.append(Claim(text=text, found=statistics.median(ratios), limit=3 if same == "True" else 6))
    sheets = [Sheet(title="verify, warm and cold", rows=rows)]
    return report("warm_starts", sheets=sheets, claims=claims, as_json=given.json)


def _count(rows: list[Row]) -> float:
    return float(sum(row["equal"] != "yes" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
