"""Claim: on an accelerator `truestep check` has the findings that it has on the CPU, at the same lines.

Puts the scripts of tests/corpus on the test accelerator line by line and evaluates all rules: models and
batches are moved (`moved`), or tensors are made there (`made`). What cannot be put there is listed:
frameworks that do not know the device, and scripts that fail there without truestep too.
Exit code: 0 all claims hold, 1 one fails, 2 one cannot be told.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from measure import Claim, Row, Sheet, report

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests import preloaded
from tests.accelerator import environment
from tests.accelerator.swapping import ONLY_THERE, make_there, swap
from tests.gathering import Gathered, expected, judged
from tests.patches import write_repaired
from truestep.check import Evaluation
from truestep.watch.evidence.kinds import NOT_CHECKED

CORPUS = Path(__file__).parents[1] / "tests" / "corpus"
MIN_OPERATORS = 5
"""Operators per optimizer step on the device from which on a script counts as trained there."""
FRAMEWORK = re.compile(r"^(from|import) (accelerate|transformers)\b", re.MULTILINE)
"""Frameworks that choose the device themselves: on this one they would move models back to the CPU."""
MAX_S = 900.0


def candidates(source: str) -> Iterator[tuple[str, str]]:
    """Return the script's text in the ways in which it can be put on the device."""
    moved = swap(source)
    if moved is not None:
        yield "moved", moved
    made = None if FRAMEWORK.search(source) else make_there(source)
    if made is not None:
        yield "made", made


def examine(path: Path) -> Row:
    """Put one script on the device and compare the findings with those that it marks."""
    row: Row = {"script": path.stem, "kind": path.parent.name, "way": "", "equal": None, "differs": ""}
    why = "no model or batch is found in its text"
    for way, text in candidates(path.read_text()):
        with tempfile.TemporaryDirectory() as name:
            script = Path(name, path.name)
            script.write_text(text)
            found, evaluation = judged(script, timeout_s=MAX_S)
            if found.code:
                why = fails_bare(script) or f"fails under check alone: {last_line(found.output)}"
            elif operators_per_step(script) < MIN_OPERATORS:
                why = "does not train on the device"
            else:
                return {**row, "way": way, **compare(text, found, evaluation)}
        if why.startswith("fails under check alone"):
            return {**row, "way": way, "equal": 0.0, "differs": why}
    return {**row, "way": "not on the device", "differs": why}


def operators_per_step(script: Path) -> float:
    """Return how many operators of an optimizer step the device was asked for in the last run of a script."""
    lines = [line for line in Path(os.environ["TOY_LOG"]).read_text().splitlines() if str(script) in line]
    processes = [json.loads(line) for line in lines]
    return max((one["operators"] / max(one["steps"], 1) for one in processes), default=0)


def fails_bare(script: Path) -> str:
    """Return with what a script fails on the device without truestep; nothing if it does not fail."""
    words = [sys.executable, str(script)]
    done = subprocess.run(
        words, cwd=script.parent, capture_output=True, text=True, timeout=MAX_S, check=False
    )
    return last_line(done.stderr) if done.returncode else ""


def last_line(text: str) -> str:
    """Return the end of what a script printed."""
    return (text.strip().splitlines() or ["failed"])[-1][:100]


def compare(text: str, found: Gathered, evaluation: Evaluation) -> Row:
    """Return how the findings on the device differ from those that the script marks."""
    troubles = [*evaluation.failed, *(one for one in found.evidence.first.troubles if NOT_CHECKED not in one)]
    wanted = expected(text)
    hits: dict[str, set[int | None]] = {}
    for item in evaluation.findings:
        for one in (item, *item.consequences):
            hits.setdefault(one.rule.meta.code, set()).add(one.finding.line)
    missing = [f"missing {code}" for code in wanted if code not in hits]
    lines = [
        f"{code} at {sorted(hits[code], key=str)}"
        for code in wanted
        if code in hits and not hits[code] & wanted[code]
    ]
    reported = {item.rule.meta.code for item in evaluation.findings if item.severity != "info"}
    more = [f"more {code}" for code in sorted(reported - ONLY_THERE) if code not in wanted]
    why = [*missing, *lines, *more, *troubles]
    return {"equal": float(not why), "differs": "; ".join(why)}


def claims_of(rows: Sequence[Row]) -> list[Claim]:
    """Return what is claimed."""
    there = [row for row in rows if row["equal"] is not None]
    differ = sum(not row["equal"] for row in there)
    return [Claim(text=f"scripts with other findings, of {len(there)} on the device", found=differ, limit=0)]


def sums(rows: Sequence[Row]) -> list[Row]:
    """Return the counts by kind."""
    kinds = ("buggy", "twins", "clean")
    parts = {kind: [row for row in rows if row["kind"] == kind] for kind in kinds}
    return [
        {
            "kind": kind,
            "scripts": float(len(part)),
            "on the device": float(sum(row["equal"] is not None for row in part)),
            "equal findings": float(sum(bool(row["equal"]) for row in part)),
        }
        for kind, part in parts.items()
    ]


def main() -> int:
    """Run what is asked for and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", help="names of scripts that begin so, with commas between them")
    parser.add_argument("--at-once", type=int, default=2, help="scripts that run at the same time")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    scripts = [path for name in ("buggy", "clean") for path in sorted((CORPUS / name).glob("*.py"))]
    scripts += [write_repaired(path) for path in scripts if path.parent.name == "buggy"]
    if given.only:
        scripts = [path for path in scripts if path.stem.startswith(tuple(given.only.split(",")))]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.at_once) as pool:
        os.environ.update(environment(TOY_LOG=str(Path(folder, "log"))))
        preloaded.install(Path(folder))
        preloaded.use(Path(folder))
        rows = list(pool.map(examine, scripts))
    differing = [row for row in rows if row["equal"] != 1.0]
    sheets = [Sheet(title="in sum", rows=sums(rows))]
    if differing:
        sheets.insert(0, Sheet(title="not on the device, or with other findings", rows=differing))
    return report("on_accelerator", sheets=sheets, claims=claims_of(rows), as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
