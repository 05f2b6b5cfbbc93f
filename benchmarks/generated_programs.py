"""Claim: a program put together from any features ends with one digest, however it is killed and spread.

Usage: python benchmarks/generated_programs.py [--programs 200] [--seed N] [--jobs 2]
[--no-shrink] [--json].
Each program is trained undisturbed on one process, then killed, resumed and moved as chance says
(tests/train/generated.py).
A failure is made as small as possible and printed with the line that shows it again.
"""

import argparse
import multiprocessing
import os
import random
import re
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
BATCH = 20
"""Programs that hypothesis makes at once: it ends with the first of them that fails."""


def attempt(seed: int, *, num_programs: int, shrinks: bool) -> tuple[Counter[str], str]:
    """Try programs until one fails; return what was run, and the smallest failure."""
    import hypothesis

    from tests.train.generated import Trial, explain, problems, trials

    counts: Counter[str] = Counter()

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=num_programs,
        deadline=None,
        database=None,
        derandomize=False,
        print_blob=False,
        phases=[hypothesis.Phase.generate, *([hypothesis.Phase.shrink] if shrinks else [])],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(trials())
    def run(trial: Trial) -> None:
        started_s = time.monotonic()
        wrong = problems(trial)
        size = max(life.processes for life in trial.lives)
        counts[f"{size} programs"] += 1
        counts[f"{size} starts"] += 1 + len(trial.lives)
        counts[f"{size} early ends"] += len(trial.lives) - 1
        counts[f"{size} ms"] += round(1000 * (time.monotonic() - started_s))
        assert not wrong, explain(trial, wrong)

    try:
        run()
    except hypothesis.errors.FlakyFailure as error:
        return counts, f"fails only sometimes: {_reason(error.exceptions[0])}"
    except AssertionError as error:
        return counts, _reason(error)
    return counts, ""


def _reason(error: Exception) -> str:
    return re.split(r"\n(?:assert|Falsifying)", str(error))[0]


def main() -> int:
    """Run the claim."""
    from group import end_with_parent
    from measure import Sheet, fact, report

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, printed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--no-shrink", action="store_true", help="report failures as they are found")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    seed = arguments.seed if arguments.seed is not None else random.randrange(2**32)
    print(f"seed {seed}", file=sys.stderr)
    counts: Counter[str] = Counter()
    failures: list[str] = []
    seeds = [seed + number for number in range(-(-arguments.programs // BATCH))]
    num_programs = min(BATCH, arguments.programs)
    job = partial(attempt, num_programs=num_programs, shrinks=not arguments.no_shrink)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs, mp_context=spawn, initializer=end_with_parent) as pool:
        for found, failure in pool.map(job, seeds):
            counts += found
            if failure:
                failures.append(failure)
                print(failure, file=sys.stderr)
            done = sum(count for name, count in counts.items() if name.endswith("programs"))
            print(f"{done} programs, {len(failures)} failures", file=sys.stderr)
    rows = [
        {
            "processes at most": str(size),
            "programs": counts[f"{size} programs"],
            "starts": counts[f"{size} starts"],
            "ended early": counts[f"{size} early ends"],
            "seconds per program": counts[f"{size} ms"] / 1000 / max(1, counts[f"{size} programs"]),
        }
        for size in range(1, 5)
    ]
    sheets = [Sheet(title=f"generated programs, seed {seed}", rows=rows, num_digits=2)]
    if failures:
        sheets.append(Sheet(title="failures", rows=[{"failure": failure} for failure in failures]))
    claim = fact("every program ends with one digest", not failures)
    return report("generated_programs", sheets=sheets, claims=[claim], as_json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
