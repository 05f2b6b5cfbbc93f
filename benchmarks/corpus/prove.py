"""Claim: every script of the corpus gives other weights when run again in its way, and its twin the same.

Every run is a fresh process (or a fresh torchrun) in a fresh folder; what is compared is the digest of the
weights that the script itself prints last. A racy cause is run --tries times, and the share of pairs of runs
that differ is told. Each case is told on stderr as it ends. Exit code: 0 all causes differ and all twins are
the same, 1 not so, 2 bad usage.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from index import CASES, FOLDER, Case
from rich.console import Console
from rich.table import Table

MAX_S = 240
MIN_TWIN_TRIES = 3
LEFT_OUT = ("PYTHONHASHSEED", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "MALLOC_PERTURB_")
"""Set around us, they would make a cause repeat."""


class CannotRun(Exception):
    """A script ended in another way than it should."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One way of starting a script; with `kill_after` it is killed then and started again."""

    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str | None] = field(default_factory=dict)
    num_processes: int = 0
    kill_after: int = 0


def launches(case: Case, *, num_tries: int) -> list[Launch]:
    """The runs whose weights are compared."""
    processes = case.num_processes if case.num_processes > 1 else 0
    if case.mode == "kill":
        whole = Launch(num_processes=processes)
        return [whole, Launch(num_processes=processes, kill_after=case.kill_after)]
    if case.mode == "environment":
        return [Launch(environment=environment) for environment in case.environments]
    if case.mode == "twice":
        return [Launch(num_processes=processes)] * num_tries
    vary: dict[str, Callable[[int], Launch]] = {
        "processes": lambda value: Launch(num_processes=value),
        "workers": lambda value: Launch(arguments=("--workers", str(value))),
        "threads": lambda value: Launch(environment={"OMP_NUM_THREADS": str(value)}),
    }
    return [vary[case.mode](value) for value in case.values]


def run(script: Path, launch: Launch) -> str:
    """Start a script in a fresh folder and return the digest it prints."""
    with tempfile.TemporaryDirectory() as folder:
        if launch.kill_after:
            killed = _start(script, launch, folder=folder, kill_after=launch.kill_after)
            if killed.returncode == 0 or "weights " in killed.stdout:
                raise CannotRun(f"{script} was not killed after {launch.kill_after} steps: {killed.stdout}")
            if not list(Path(folder).rglob("*.pt")):
                raise CannotRun(f"{script} saved nothing before it was killed: {killed.stderr}")
        done = _start(script, launch, folder=folder)
    lines = done.stdout.splitlines() or [""]
    if done.returncode != 0 or not lines[-1].startswith("weights "):
        raise CannotRun(f"{script} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return lines[-1].removeprefix("weights ")


def _start(
    script: Path, launch: Launch, *, folder: str, kill_after: int = 0
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable]
    if launch.num_processes:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={launch.num_processes}"]
    if kill_after:
        command += [str(FOLDER / "kill_after.py"), str(kill_after)]
    environment = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
    for name, value in launch.environment.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    return subprocess.run(
        [*command, str(script), *launch.arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=MAX_S,
    )


def prove(case: Case, *, num_tries: int) -> dict[str, Any]:
    """Run a script and its twin; say how many pairs of runs differ."""
    begun = perf_counter()
    num_tries = num_tries if case.is_racy else 2
    ours = [run(case.script, launch) for launch in launches(case, num_tries=num_tries)]
    num_twins = MIN_TWIN_TRIES if case.is_racy else 2
    theirs = [run(case.twin, launch) for launch in launches(case, num_tries=num_twins)]
    pairs = list(itertools.combinations(ours, 2))
    num_different = sum(first != second for first, second in pairs)
    print(
        f"{case.cause}: {num_different} of {len(pairs)} pairs, twin {len(set(theirs))} digest(s)",
        file=sys.stderr,
    )
    return {
        "cause": case.cause,
        "mode": case.mode,
        "racy": case.is_racy,
        "lines": list(case.lines),
        "differs": num_different > 0,
        "different_pairs": num_different,
        "pairs": len(pairs),
        "twin_same": len(set(theirs)) == 1,
        "twin_runs": len(theirs),
        "seconds": round(perf_counter() - begun, 1),
    }


def render(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The results as a table."""
    table = Table(title="The corpus: run again in its way", title_justify="left")
    for name in ("cause", "mode", "lines", "script", "pairs that differ", "twin", "s"):
        table.add_column(name, justify="right" if name in ("pairs that differ", "s") else "left")
    for row in rows:
        table.add_row(
            row["cause"],
            row["mode"],
            " ".join(map(str, row["lines"])),
            "differs" if row["differs"] else "[red]the same[/]",
            f"{row['different_pairs']} of {row['pairs']}",
            f"the same, {row['twin_runs']} runs" if row["twin_same"] else "[red]differs[/]",
            str(row["seconds"]),
        )
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", help="causes, with commas between them")
    parser.add_argument("--tries", type=int, default=4, help="runs of a script whose cause is racy")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    args = parser.parse_args()
    known = {case.cause: case for case in CASES}
    names = args.only.split(",") if args.only else list(known)
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"no such cause: {', '.join(unknown)}. Choose from {', '.join(known)}")
    if args.tries < 2:
        parser.error(f"--tries must be at least 2 to compare anything, got {args.tries}")
    with ThreadPoolExecutor(args.jobs) as pool:
        rows = list(pool.map(lambda name: prove(known[name], num_tries=args.tries), names))
    holds = all(row["differs"] and row["twin_same"] for row in rows)
    if args.json:
        print(json.dumps({"holds": holds, "cases": rows}, indent=2))
    else:
        Console(width=None if sys.stdout.isatty() else 130).print(render(rows))
        print("all causes differ and all twins are the same" if holds else "NOT SO for at least one of them")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
