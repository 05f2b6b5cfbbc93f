"""Claim: a hang is reported with the right rank, line and cause within 10 s, and a slow job is not.

Starts scripts that hang in known ways with `truestep run` at 2, 4 and 8 processes, and scripts that are only
slow, each at one of these sizes in turn, and reads what it prints. The seconds count from the script's own
mark just before the stall. Each result is written to --rows at once; --resume continues from there. Jobs that
--max-minutes leaves out are listed, and the claims are then not measured.
Exit code: 0 all claims hold, 1 one fails, 2 one cannot be told.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hang_scripts import HANGS, HEAD, SLOW
from measure import Claim, Row, Sheet, report

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests import preloaded

WITHIN_S, MIN_RIGHT = 10.0, 0.95
GIVE_UP_S = 120.0
MAX_PROCESSES, AT_ONCE = 8, 3
"""Of all jobs that run at the same time; and how many jobs that may be."""


class Job(NamedTuple):
    """A script at a number of processes."""

    kind: str
    """`hang` or `slow`."""
    name: str
    size: int


class Seen(NamedTuple):
    """What one run has printed."""

    lines: list[str]
    seconds: float | None
    """From the stall to the verdict; None without a verdict."""
    exit_code: int | None


class Outcome(NamedTuple):
    """How a run compares with what is known of its script."""

    kind: str
    name: str
    size: int
    is_good: bool
    wrong: str
    seconds: float | None


def start(script: Path, size: int, mark: Path) -> subprocess.Popen[str]:
    """Start a script under `truestep run`, with standard input open."""
    words = ["truestep", "run", "-n", str(size), "--max-restarts", "0", str(script), str(mark)]
    return subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=script.parent,
    )


def watch(script: Path, size: int) -> Seen:
    """Run a script until a verdict is printed or it ends."""
    mark = script.with_suffix(f".{size}.mark")
    process = start(script, size, mark)
    lines: list[str] = []
    verdict_s: list[float] = []
    found = threading.Event()

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line.rstrip())
            if line.startswith(("truestep: the job hangs", "truestep: a collective failed")):
                verdict_s.append(time.time())
            if line.startswith("  fix ") or "still runs" in line:
                found.set()
        found.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    found.wait(GIVE_UP_S)
    reader.join(0.3)
    end(process, is_over=not reader.is_alive())
    reader.join(8)
    stalled_s = float(mark.read_text()) if mark.exists() else None
    seconds = verdict_s[0] - stalled_s if verdict_s and stalled_s else None
    return Seen(lines, seconds, process.returncode)


def end(process: subprocess.Popen[str], *, is_over: bool) -> None:
    """End a run and all that it has started; a process that is stopped too."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(8 if is_over else 0)
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(8)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def judge_hang(job: Job, folder: Path) -> Outcome:
    """Run a script that hangs, and compare rank, line and cause."""
    hang = HANGS[job.name]
    script = folder / f"{job.name.replace(' ', '_').replace('=', '')}_{job.size}.py"
    script.write_text(HEAD + hang.body)
    seen = watch(script, job.size)
    rank = 0 if hang.odd == "first" else job.size - 1
    text = "\n".join(seen.lines)
    wrong = []
    if seen.seconds is None:
        return Outcome(*job, is_good=False, wrong=f"no verdict: {text[-300:]}", seconds=None)
    if f"  elsewhere     rank {rank}\n" not in text + "\n":
        wrong.append("rank")
    numbers = [n for n, line in enumerate(script.read_text().split("\n"), 1) if line.endswith("# odd")]
    odd = [line for line in seen.lines if line.startswith(f"  rank {rank} ")]
    if numbers and not any(f"{script.name}:{number}" in line for number in numbers for line in odd):
        wrong.append("line")
    if f"  likely cause  {hang.cause}: " not in text:
        wrong.append("cause")
    if seen.seconds > WITHIN_S:
        wrong.append("late")
    answer = "" if not wrong else ", ".join(wrong) + "\n" + text[-1200:]
    return Outcome(*job, is_good=not wrong, wrong=answer, seconds=seen.seconds)


def judge_slow(job: Job, folder: Path) -> Outcome:
    """Run a script that is only slow: it must end well, with nothing printed."""
    script = folder / f"slow_{job.name.replace(' ', '_')}_{job.size}.py"
    script.write_text(HEAD + SLOW[job.name])
    seen = watch(script, job.size)
    text = "\n".join(seen.lines)
    is_silent = not any(words in text for words in ("likely cause", "the job hangs", "a collective failed"))
    is_good = is_silent and seen.exit_code == 0
    wrong = "" if is_good else f"exit code {seen.exit_code}\n{text[-1200:]}"
    return Outcome(*job, is_good=is_good, wrong=wrong, seconds=None)


def list_jobs(given: argparse.Namespace) -> list[Job]:
    """Return what to run: every hang at every size, every slow job at one."""
    hangs = [Job("hang", name, size) for size in given.sizes for name in HANGS]
    slow = [Job("slow", name, given.sizes[n % len(given.sizes)]) for n, name in enumerate(SLOW)]
    jobs = {"hang": hangs, "slow": slow, "all": hangs + slow}[given.kind]
    return [job for job in jobs if given.only in job.name]


def read_rows(path: Path) -> dict[Job, Outcome]:
    """Return what an earlier run has written."""
    lines = path.read_text().splitlines() if path.exists() else []
    rows = [Outcome(**json.loads(line)) for line in lines]
    return {Job(*row[:3]): row for row in rows}


def run_jobs(jobs: Sequence[Job], folder: Path, *, deadline_s: float) -> Iterator[Outcome]:
    """Yield outcomes as jobs end; no job starts after the deadline."""

    def run(job: Job) -> Outcome | None:
        if time.monotonic() > deadline_s:
            return None
        return (judge_hang if job.kind == "hang" else judge_slow)(job, folder)

    for size in sorted({job.size for job in jobs}):
        with ThreadPoolExecutor(max(1, min(AT_ONCE, MAX_PROCESSES // size))) as pool:
            for future in as_completed([pool.submit(run, job) for job in jobs if job.size == size]):
                outcome = future.result()
                if outcome is not None:
                    yield outcome


def measure(jobs: Sequence[Job], *, rows: Path, is_resumed: bool, max_s: float) -> list[Outcome]:
    """Run all jobs that are not in the file yet, and write each outcome there."""
    deadline_s = time.monotonic() + max_s
    known = read_rows(rows) if is_resumed else {}
    found = [known[job] for job in jobs if job in known]
    left = [job for job in jobs if job not in known]
    with tempfile.TemporaryDirectory() as name, rows.open("a" if is_resumed else "w") as file:
        folder = Path(name)
        shared = os.environ.get(preloaded.FOLDER)
        if shared is None:
            preloaded.install(folder)
        preloaded.use(Path(shared or folder))
        # The first one waits for the imports.
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        for item in run_jobs(left, folder, deadline_s=deadline_s):
            found.append(item)
            file.write(json.dumps(item._asdict()) + "\n")
            file.flush()
            seconds = f" after {item.seconds:.1f} s" if item.seconds is not None else ""
            answer = "right" if item.is_good else "WRONG"
            print(
                f"{len(found)}/{len(jobs)} {answer} {item.kind} {item.size} {item.name}{seconds}",
                file=sys.stderr,
            )
    return sorted(found, key=lambda item: jobs.index(Job(*item[:3])))


def main() -> int:
    """Run all, print the table, and return 0 if the claims hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 4, 8], help="numbers of processes")
    parser.add_argument("--kind", choices=["all", "hang", "slow"], default="all")
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--rows", type=Path, default=Path(tempfile.gettempdir(), "hangs.jsonl"))
    parser.add_argument("--resume", action="store_true", help="skip what is in --rows")
    parser.add_argument("--max-minutes", type=float, default=45.0, help="start no job after that time")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    os.nice(5)
    os.environ["OMP_NUM_THREADS"] = "1"
    jobs = list_jobs(given)
    print(f"{len(jobs)} jobs; results go to {given.rows}", file=sys.stderr)
    outcomes = measure(jobs, rows=given.rows, is_resumed=given.resume, max_s=60 * given.max_minutes)
    missing = [job for job in jobs if job not in {Job(*item[:3]) for item in outcomes}]
    for job in missing:
        print(f"not run: {job.kind} {job.size} {job.name}", file=sys.stderr)
    return show(outcomes, is_complete=not missing, as_json=given.json)


def show(outcomes: Sequence[Outcome], *, is_complete: bool, as_json: bool) -> int:
    """Print one row for each run and the claims; return the exit code."""
    hangs, slow = ([item for item in outcomes if item.kind == kind] for kind in ("hang", "slow"))
    rows: list[Row] = [
        {
            "kind": item.kind,
            "script": item.name,
            "processes": str(item.size),
            "answer": "right" if item.is_good else item.wrong,
            "seconds": item.seconds,
        }
        for item in outcomes
    ]
    claims = []
    if hangs:
        share = sum(not item.is_good for item in hangs) / len(hangs)
        text = f"share of {len(hangs)} hangs without the right rank, line and cause in {WITHIN_S:.0f} s"
        claims.append(Claim(text=text, found=share if is_complete else None, limit=1 - MIN_RIGHT))
    if slow:
        num = sum(not item.is_good for item in slow)
        text = f"of {len(slow)} slow jobs: reported as hanging, or failed"
        claims.append(Claim(text=text, found=num if is_complete else None, limit=0))
    return report(
        "hangs", sheets=[Sheet(title="Jobs", rows=rows)] if rows else [], claims=claims, as_json=as_json
    )


if __name__ == "__main__":
    sys.exit(main())
