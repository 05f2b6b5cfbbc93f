"""Claim: a hang is reported with the right rank, line and cause within 10 s, and a slow job is not.

Starts scripts that hang in known ways, and slow ones, with `truestep run` at 2 and 4 processes, and reads
what it prints. The seconds count from the script's own mark just before the stall.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.hang_scripts import HANGS, HEAD, SLOW
from tests import preloaded

WITHIN_S = 10.0
GIVE_UP_S = 120.0
AT_ONCE = 3


class Seen(NamedTuple):
    """What one run has printed."""

    lines: list[str]
    seconds: float | None
    """From the stall to the verdict; None without a verdict."""
    exit_code: int | None


class Outcome(NamedTuple):
    """How a run compares with what is known of its script."""

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

    reader = threading.Thread(target=read)
    reader.start()
    found.wait(GIVE_UP_S)
    time.sleep(0.3)
    end(process)
    reader.join()
    stalled_s = float(mark.read_text()) if mark.exists() else None
    seconds = verdict_s[0] - stalled_s if verdict_s and stalled_s else None
    return Seen(lines, seconds, process.returncode)


def end(process: subprocess.Popen[str]) -> None:
    """End a run and all that it has started; a process that is stopped too."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(8)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def judge_hang(name: str, size: int, folder: Path) -> Outcome:
    """Run a script that hangs, and compare rank, line and cause."""
    hang = HANGS[name]
    script = folder / f"{name.replace(' ', '_').replace('=', '')}_{size}.py"
    script.write_text(HEAD + hang.body)
    seen = watch(script, size)
    rank = 0 if hang.odd == "first" else size - 1
    text = "\n".join(seen.lines)
    wrong = []
    if seen.seconds is None:
        return Outcome(name, size, is_good=False, wrong=f"no verdict: {text[-300:]}", seconds=None)
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
    return Outcome(name, size, is_good=not wrong, wrong=answer, seconds=seen.seconds)


def judge_slow(name: str, size: int, folder: Path) -> Outcome:
    """Run a script that is only slow: it must end well, with nothing printed."""
    script = folder / f"slow_{name.replace(' ', '_')}_{size}.py"
    script.write_text(HEAD + SLOW[name])
    seen = watch(script, size)
    text = "\n".join(seen.lines)
    is_silent = not any(words in text for words in ("likely cause", "the job hangs", "a collective failed"))
    is_good = is_silent and seen.exit_code == 0
    return Outcome(name, size, is_good=is_good, wrong="" if is_good else text[-600:], seconds=None)


def main() -> int:
    """Run all, print the table, and return 0 if the claim holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 4], help="numbers of processes")
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    os.nice(5)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["OMP_NUM_THREADS"] = "1"
        shared = os.environ.get(preloaded.FOLDER)
        if shared is None:
            preloaded.install(folder)
        preloaded.use(Path(shared or folder))
        subprocess.run(
            [sys.executable, "-c", "import torch"], check=True
        )  # the first one waits for the imports
        jobs = [(judge_hang, kind, size) for kind in HANGS for size in given.sizes]
        jobs += [(judge_slow, kind, size) for kind in SLOW for size in given.sizes[:1]]
        jobs = [job for job in jobs if given.only in job[1]]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            futures = [pool.submit(judge, kind, size, folder) for judge, kind, size in jobs]
            outcomes = []
            for future in futures:
                outcomes.append(future.result())
                print("right" if outcomes[-1].is_good else "WRONG", *outcomes[-1][:2], file=sys.stderr)
    hangs = [item for (judge, _, _), item in zip(jobs, outcomes, strict=True) if judge is judge_hang]
    slow = [item for item in outcomes if item not in hangs]
    right = sum(item.is_good for item in hangs)
    spared = sum(item.is_good for item in slow)
    holds = right >= 0.95 * len(hangs) and spared == len(slow)
    if given.json:
        print(json.dumps({"outcomes": [item._asdict() for item in outcomes], "holds": holds}, indent=2))
    else:
        show(hangs, slow)
        print(f"{right} of {len(hangs)} hangs: right rank, line and cause within {WITHIN_S:.0f} s")
        print(f"{spared} of {len(slow)} slow jobs without a verdict")
        print("the claim holds" if holds else "the claim does not hold")
    return 0 if holds else 1


def show(hangs: list[Outcome], slow: list[Outcome]) -> None:
    """Print one row for each run."""
    table = Table("script", "processes", "seconds", "answer")
    for item in (*hangs, *slow):
        seconds = f"{item.seconds:.1f}" if item.seconds is not None else ""
        table.add_row(item.name, str(item.size), seconds, "right" if item.is_good else item.wrong)
    Console(width=120).print(table, markup=False)


if __name__ == "__main__":
    sys.exit(main())
