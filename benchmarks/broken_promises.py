"""Breaks promises on purpose, one at a time, and shows that the fast tier of the tests fails for each.

Usage: python benchmarks/broken_promises.py [--only WORDS] [--json]. Each change is made in a copy of the
checkout, and the tests that guard the promise are run there as `scripts/test` would run them.
Exit code: 0 a test fails for every change, 1 one goes unnoticed.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from measure import Claim, Row, Sheet, report

ROOT = Path(__file__).resolve().parents[1]
FAILED = re.compile(r"^FAILED (\S+)", flags=re.MULTILINE)
TIMEOUT_S = 1800


class Change(NamedTuple):
    """One promise, how it is broken in one file of the package, and the tests that guard it."""

    broken: str
    file: str
    old: str
    new: str
    tests: str


CHANGES = [
    Change(
        "a snapshot's files are not flushed to the disk",
        "run/checkpoint/durable.py",
        "                rest = rest[done:]\n        os.fsync(descriptor)\n",
        "                rest = rest[done:]\n",
        "tests/run/checkpoint",
    ),
    Change(
        "a snapshot's name is not flushed to the disk",
        "base/runfiles.py",
        "    try:\n        os.fsync(descriptor)\n",
        "    try:\n        pass\n",
        "tests/run/checkpoint",
    ),
    Change(
        "a file takes its name before it is on the disk",
        "base/runfiles.py",
        "            os.fsync(opened)",
        "            pass",
        "tests/test_faults.py tests/run/train/test_faults.py",
    ),
    Change(
        "a damaged snapshot is accepted",
        "run/checkpoint/snapshot.py",
        "if with_hash and (",
        "if not with_hash and (",
        "tests/run/checkpoint",
    ),
    Change(
        "lanes are summed in the order in which they come",
        "run/dist/tree.py",
        "while self._open and self._open[-1][1] == size and self._open[-1][0] == start ^ size:",
        "while self._open:",
        "tests/run/dist tests/run/train/test_processes.py",
    ),
    Change(
        "draws inside a lane differ from run to run",
        "run/train/step.py",
        "seeds.set(self.batch.step, lane.lane, ",
        "seeds.set(self.batch.step, lane.lane + id(self) % 7919, ",
        "tests/run/train",
    ),
    Change(
        "a rule is gone",
        "rules/loop/stale_gradients.py",
        "",
        "",
        "tests/rules tests/corpus",
    ),
    Change(
        "a rule flags every script",
        "rules/loop/stale_gradients.py",
        "def check(evidence: Evidence) -> Iterator[Finding]:\n",
        "def check(evidence: Evidence) -> Iterator[Finding]:\n"
        '    yield Finding(file=evidence.files[0], line=1, message="m", evidence="e")\n',
        "tests/corpus -k twin",
    ),
    Change(
        "a probe draws a random number",
        "watch/inspect/probe/probes.py",
        "    def batch(self, number: int, batch: Any) -> None:\n",
        "    def batch(self, number: int, batch: Any) -> None:\n        torch.rand(1)\n",
        "tests/watch",
    ),
    Change(
        "what runs for a probe draws from the script's generator",
        "watch/inspect/probe/probes.py",
        "            with self._tape.under_way.copying():\n",
        "            torch.rand(1)\n            with self._tape.under_way.copying():\n",
        "tests/watch/test_odd.py",
    ),
    Change(
        "an observer prints",
        "watch/script/tape.py",
        "        self.num_steps += 1\n",
        "        self.num_steps += 1\n        print(self.num_steps)\n",
        "tests/watch/test_odd.py",
    ),
    Change(
        "a probe keeps what a model was given until the step ends",
        "watch/inspect/probe/probes.py",
        "given = copy_inputs((args, kwargs))",
        "given = (args, kwargs)",
        "tests/watch/test_odd.py",
    ),
    Change(
        "a watched script prints more than a bare one",
        "watch/script/exec_script.py",
        "    tape = Tape(",
        '    print("watched")\n    tape = Tape(',
        "tests/watch",
    ),
    Change(
        "a pipe or a device is read as if it were a file",
        "base/plainfile.py",
        "if not stat.S_ISREG(found.st_mode):",
        "if stat.S_ISDIR(found.st_mode):",
        "tests/security tests/run/data/test_shards_faults.py",
    ),
    Change(
        "a symbolic link in a run folder is followed",
        "base/runfiles.py",
        "found = os.lstat(path) if opened",
        "found = os.stat(path) if opened",
        "tests/security tests/test_runfiles.py",
    ),
    Change(
        "verify compares nothing",
        "verify/chains.py",
        "return bool(one != other)",
        "return False",
        "tests/verify",
    ),
]


def run_tests(copy: Path, words: str) -> tuple[int, str]:
    """Run tests of the fast tier in a copy of the checkout, up to the first failure."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "2", "--dist", "worksteal", *words.split()]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider"],
        cwd=copy,
        env=os.environ | {"PYTHONPATH": str(copy / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    return done.returncode, done.stdout


def stale() -> list[str]:
    """Return the changes that the sources no longer have a place for."""
    texts = {change: (ROOT / "src" / "truestep" / change.file).read_text("utf-8") for change in CHANGES}
    return [
        f"{change.file}: {change.old!r}"
        for change in CHANGES
        if change.old and texts[change].count(change.old) != 1
    ]


def try_change(copy: Path, change: Change) -> Row:
    """Make a change, run the tests that guard the promise, and take the change back."""
    path = copy / "src" / "truestep" / change.file
    text = path.read_text(encoding="utf-8")
    if change.old:
        path.write_text(text.replace(change.old, change.new), encoding="utf-8")
    else:
        path.unlink()
    begun_s = time.monotonic()
    code, output = run_tests(copy, change.tests)
    path.write_text(text, encoding="utf-8")
    failed = FAILED.findall(output) if code in (1, 2) else []  # 2: stopped at the first, by xdist
    if not failed:
        print(output[-2000:], file=sys.stderr)
    return {
        "broken promise": change.broken,
        "seconds": time.monotonic() - begun_s,
        "first test that failed": failed[0] if failed else "none",
    }


def main() -> int:
    """Try every change; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="changes whose description holds these words")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    options = parser.parse_args()
    if missing := stale():
        raise SystemExit(f"not in the sources once: {', '.join(missing)}")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "checkout"
        shutil.copytree(
            ROOT, copy, ignore=shutil.ignore_patterns("__pycache__", ".git", ".ci", "site", ".*cache")
        )
        rows = [try_change(copy, change) for change in CHANGES if options.only in change.broken]
    num_unnoticed = sum(row["first test that failed"] == "none" for row in rows)
    claim = Claim(text=f"of {len(rows)} broken promises, not noticed", found=num_unnoticed, limit=0)
    sheet = Sheet(title="Promises broken on purpose, and the fast tier", rows=rows)
    return report("broken_promises", sheets=[sheet], claims=[claim], as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
