"""Claim: `truestep verify` is right about stock scripts of other frameworks, and about our own example.

The scripts of benchmarks/frameworks are written as each framework's documents show it and know nothing of
truestep. Each is verified with a kill in the middle. What is true of it is found without truestep: it is run
bare, killed by SIGKILL, started again, and the digests of final weights that it prints are compared. Which
cause and line are named is shown, and judged where an owner of the script could be misled.
Exit code: 0 every verdict is as expected, and so is every bare run, 1 not so, 2 bad usage.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
KILL = HERE / "corpus" / "kill_after.py"
KILL_AFTER = 18
"""Two steps after a save, in the middle of the second epoch: where verify kills these scripts too."""
MAX_S = 600
COMMAND = "from truestep.cli import main; main()"
LEFT_OUT = ("PYTHONHASHSEED", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "MALLOC_PERTURB_")
"""Set around us, they would decide what is found."""
SET = {"HF_HUB_OFFLINE": "1"}


class CannotRun(Exception):
    """A script ended in another way than it should."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A script with its arguments, how it is verified, and what is true of it.

    `same`: whether it ends in the same bits in the way that `options` ask for. Run again as it is, every one
    does. `causes`: those that may be named of a difference. `is_bare`: whether it prints its weights' digest.
    """

    name: str
    script: str
    same: bool
    arguments: tuple[str, ...] = ()
    options: tuple[str, ...] = ("--kill",)
    causes: tuple[str, ...] = ()
    is_bare: bool = True

    @property
    def path(self) -> Path:
        """Where the script is."""
        return HERE / self.script


LIGHTNING, ACCELERATE = "frameworks/lightning_script.py", "frameworks/accelerate_script.py"
TORCHDATA, TRAINER = "frameworks/torchdata_script.py", "frameworks/trainer_script.py"
DIGITS = "../examples/digits.py"
ORDER = ("loader-position-not-saved", "data-order-not-restored")
DRAWS = ("generator-not-saved",)
AFTER = ("generator-moved-after-restore",)
IN_WORKERS = ("worker-generator-not-saved",)

CASES = (
    Case(name="lightning", script=LIGHTNING, same=False, causes=ORDER),
    Case(name="lightning-stateful", script=LIGHTNING, arguments=("--stateful",), same=True),
    Case(
        name="lightning-stateful-dropout",
        script=LIGHTNING,
        arguments=("--stateful", "--dropout", "0.2"),
        same=False,
        causes=DRAWS,
    ),
    Case(name="accelerate", script=ACCELERATE, same=False, causes=(*ORDER, *AFTER)),
    Case(name="accelerate-seedable", script=ACCELERATE, arguments=("--seedable",), same=True),
    Case(
        name="accelerate-seedable-dropout",
        script=ACCELERATE,
        arguments=("--seedable", "--dropout", "0.2"),
        same=False,
        causes=AFTER,
    ),
    Case(name="torchdata", script=TORCHDATA, same=True),
    Case(
        name="torchdata-dropout",
        script=TORCHDATA,
        arguments=("--dropout", "0.2"),
        same=False,
        causes=AFTER,
    ),
    Case(
        name="torchdata-after-iter",
        script=TORCHDATA,
        arguments=("--after-iter", "--dropout", "0.2", "--augment"),
        same=True,
    ),
    Case(
        name="torchdata-after-iter-workers",
        script=TORCHDATA,
        arguments=("--after-iter", "--augment", "--workers", "2"),
        same=False,
        causes=IN_WORKERS,
    ),
    Case(name="trainer", script=TRAINER, same=True),
    Case(name="trainer-dropout", script=TRAINER, arguments=("--dropout", "0.2"), same=True),
    Case(
        name="trainer-augment-workers",
        script=TRAINER,
        arguments=("--augment", "--workers", "2"),
        same=False,
        causes=IN_WORKERS,
    ),
    Case(name="truestep", script=DIGITS, same=True, options=("--kill", "--steps", "0"), is_bare=False),
    Case(
        name="truestep-workers",
        script=DIGITS,
        same=True,
        options=("--runs", "1", "--workers", "0,2", "--steps", "30"),
        is_bare=False,
    ),
    Case(
        name="truestep-processes",
        script=DIGITS,
        same=True,
        options=("--runs", "1", "--processes", "1,2", "--steps", "30"),
        is_bare=False,
    ),
)


def start(words: Sequence[str], *, folder: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, in an environment that decides nothing."""
    environment = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**environment, **SET},
        capture_output=True,
        text=True,
        check=False,
        timeout=MAX_S,
    )


def run_bare(case: Case, *, is_killed: bool = False) -> str:
    """Run a script without truestep and return the digest that it prints; killed first, if asked."""
    words = [str(case.path), *case.arguments]
    with tempfile.TemporaryDirectory() as folder:
        if is_killed:
            killed = start([str(KILL), str(KILL_AFTER), *words], folder=folder)
            if killed.returncode >= 0 or not any(Path(folder, "checkpoints").iterdir()):
                raise CannotRun(f"{case.name} was not killed after its first save:\n{killed.stderr[-2000:]}")
        done = start(words, folder=folder)
    digests = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("weights ")]
    if done.returncode != 0 or len(digests) != 1:
        raise CannotRun(f"{case.name} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return digests[0]


def is_same_bare(case: Case) -> bool:
    """Whether a script, killed and resumed, ends in the weights of its own run that nobody killed."""
    whole = run_bare(case)
    if run_bare(case, is_killed=True) == whole:
        return True
    if run_bare(case) != whole:
        raise CannotRun(f"{case.name} does not repeat even without a kill: the kill proves nothing.")
    return False


def verify(case: Case) -> dict[str, Any]:
    """Run the command; return what it says, with its exit code and how long it took."""
    words = ["verify", "--format", "json", *case.options, str(case.path), *case.arguments]
    begun = perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        done = start(["-c", COMMAND, *words], folder=folder)
    try:
        said = json.loads(done.stdout)
    except ValueError:
        said = {"same": None, "runs": [], "first_difference": None, "reason": done.stderr[-2000:]}
    return {**said, "code": done.returncode, "seconds": round(perf_counter() - begun, 1)}


def judge(case: Case) -> dict[str, Any]:
    """Verify a script, and hold what is said against what is true."""
    bare = is_same_bare(case) if case.is_bare else None
    said = verify(case)
    digests = {run["kind"]: run["digest"] for run in said["runs"]}
    again = digests["again"] == digests["first"] if "again" in digests else None
    found = said["first_difference"] or {}
    is_right = said["code"] == (0 if case.same else 1) and again is not False and bare in (None, case.same)
    row = {
        "name": case.name,
        "options": " ".join(case.options),
        "expected": case.same,
        "bare": bare,
        "again": again,
        "said": said["same"],
        "right": is_right,
        "named": found.get("name"),
        "cause_right": not found or found.get("name") in case.causes,
        "file": Path(found["file"]).name if found.get("file") else None,
        "line": found.get("line"),
        "source": _source(found.get("file"), found.get("line")),
        "step": found.get("step"),
        "what": found.get("what"),
        "evidence": found.get("evidence"),
        "reason": said.get("reason"),
        "seconds": said["seconds"],
    }
    print(f"{case.name}: {'right' if is_right else 'WRONG'}, {found.get('name')}", file=sys.stderr)
    return row


def _source(file: str | None, line: int | None) -> str | None:
    if file is None or line is None:
        return None
    return Path(file).read_text(encoding="utf-8").splitlines()[line - 1].strip()


def _word(same: bool | None) -> str:
    return {True: "same", False: "different", None: "-"}[same]


def render(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The results as a table."""
    table = Table(title="truestep verify on stock scripts", title_justify="left")
    for name in ("script", "bare", "again", "verify says", "named", "at", "s"):
        table.add_column(name, justify="right" if name == "s" else "left")
    for row in rows:
        verdict = "not told" if row["said"] is None else _word(row["said"])
        named = row["named"] or ""
        table.add_row(
            row["name"],
            _word(row["bare"]),
            _word(row["again"]),
            verdict if row["right"] else f"[red]{verdict}[/]",
            named if row["cause_right"] else f"[red]{named}[/]",
            f"{row['file']}:{row['line']}" if row["file"] else "",
            str(row["seconds"]),
        )
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", help="scripts, with commas between them")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    args = parser.parse_args()
    known = {case.name: case for case in CASES}
    names = args.only.split(",") if args.only else list(known)
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"no such script: {', '.join(unknown)}. Choose from {', '.join(known)}")
    rows = [judge(known[name]) for name in names]
    num_right = sum(row["right"] for row in rows)
    num_causes = sum(row["cause_right"] for row in rows)
    if args.json:
        figures = {"right": num_right, "of": len(rows), "causes_right": num_causes}
        print(json.dumps({"holds": num_right == len(rows), **figures, "cases": rows}, indent=2))
    else:
        Console(width=None if sys.stdout.isatty() else 150).print(render(rows))
        print(f"{num_right} of {len(rows)} verdicts right, {len(rows) - num_causes} causes to look at")
        for row in rows:
            if row["reason"]:
                print(f"{row['name']}: {row['reason']}")
    return 0 if num_right == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
