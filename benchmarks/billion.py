"""Claim: a transformer of a billion parameters trains on 4 processes in 24 GiB, is killed, resumes exactly.

`billion_train.py` runs twice by `truestep run -n 4`: once in peace, once with a process killed by SIGKILL in
the step after a snapshot. Both must end in the same bits. It took 12 minutes, 21 GB of memory and 8 GB of
disk; `--parameters 3e7` takes little. The optimizer is SGD with momentum: weights, gradients and momenta are
12 bytes per parameter, and AdamW's 16 would leave four processes little room to work in within 24 GiB.
The processes run with settings of glibc that give freed memory back at once, and take it in large pages.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import measure

SCRIPT = Path(__file__).with_name("billion_train.py")
GIB, GB = 2**30, 1e9
BYTES_PER_PARAMETER = 12
ROOM_BYTES = 24 * GIB
MOST_OF_ALL = 0.5
SAMPLE_S = 1.0
TUNABLES = "glibc.malloc.mmap_threshold=4194304:glibc.malloc.hugetlb=1"
"""Before 2.38 it hardly uses freed pieces of some MB again; large pages are cheaper to fetch."""


class Watch(threading.Thread):
    """Samples how much memory all processes of a run hold together, pages that they share counted once."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self._mark = str(folder)
        self._is_over = threading.Event()
        self.peak_bytes = 0

    def run(self) -> None:
        while not self._is_over.wait(SAMPLE_S):
            self.peak_bytes = max(self.peak_bytes, sum(self._held()))

    def stop(self) -> None:
        self._is_over.set()
        self.join()

    def _held(self) -> Iterator[int]:
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if self._mark in (entry / "cmdline").read_text() and int(entry.name) != os.getpid():
                    rollup = (entry / "smaps_rollup").read_text()
                    yield (
                        next(int(line.split()[1]) for line in rollup.splitlines() if line[:4] == "Pss:")
                        * 1024
                    )
            except (OSError, StopIteration):
                continue  # ended meanwhile


def train(folder: Path, options: argparse.Namespace, *, kills: bool) -> dict[str, Any]:
    """Run the script; return its notes by process, the peak of all together, and what it left on disk."""
    folder.mkdir()
    truestep = Path(sysconfig.get_path("scripts"), "truestep")
    command = [str(truestep), "run", "-n", str(options.processes), str(SCRIPT), str(folder)]
    command += ["--parameters", str(options.parameters), *(["--kill"] if kills else [])]
    watch = Watch(folder)
    watch.start()
    begun_s = time.monotonic()
    environment = os.environ | {"GLIBC_TUNABLES": TUNABLES}
    done = subprocess.run(command, stdout=sys.stderr, env=environment, check=False, timeout=options.timeout)
    watch.stop()
    if done.returncode:
        raise SystemExit(f"the run ended with exit code {done.returncode}")
    files = sorted(folder.glob("notes-*.jsonl"))
    disk = [path.stat().st_size for path in folder.glob("run/snapshots/step-*/*")]
    result = {
        "notes": [[json.loads(line) for line in path.read_text().splitlines()] for path in files],
        "peak": watch.peak_bytes,
        "disk": sum(disk),
        "seconds": time.monotonic() - begun_s,
    }
    print(json.dumps(result), file=sys.stderr)
    return result


def phases(result: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row for each phase: seconds of the slowest process, and the largest peak of one."""
    for lines in zip(*result["notes"], strict=True):
        name = lines[0]["phase"] + (f" {lines[0]['number']}" if "number" in lines[0] else "")
        seconds = max(line["seconds"] for line in lines)
        peak, total = max(line["peak"] for line in lines), sum(line["peak"] for line in lines)
        cpu_s = sum(line["cpu"] for line in lines)
        row = {"phase": name, "seconds": seconds, "processor seconds": cpu_s}
        yield {**row, "peak of one, GB": peak / GB, "sum of peaks, GB": total / GB}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=float, default=1e9)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for each of the two runs")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="billion-"))
    try:
        whole = train(root / "whole", options, kills=False)
        shutil.rmtree(root / "whole" / "run")  # room for the other one's snapshot
        killed = train(root / "killed", options, kills=True)
        was_killed = (root / "killed" / "killed").exists()
    finally:
        shutil.rmtree(root)
    digests = [[notes[-1]["digest"] for notes in result["notes"]] for result in (whole, killed)]
    num_parameters = whole["notes"][0][1]["parameters"]
    everything = num_parameters * BYTES_PER_PARAMETER
    peak = max(line["peak"] for result in (whole, killed) for notes in result["notes"] for line in notes)
    together = max(whole["peak"], killed["peak"])
    sheets = [
        measure.Sheet(
            title=f"{num_parameters:,} parameters on {options.processes} processes: {name}",
            rows=[*phases(result)],
            note=f"{result['seconds']:.0f} s in all, {result['disk'] / GB:.2f} GB in the snapshot, "
            f"{result['peak'] / GB:.2f} GB the most that all processes held together (PSS, sampled)",
            num_digits=2,
        )
        for name, result in (("in peace", whole), ("killed and resumed", killed))
    ]
    resumed = [line["phase"] for line in killed["notes"][0]]
    claims = [
        measure.Claim(text="parameters wanted", found=options.parameters, limit=num_parameters),
        measure.fact(
            "a process was killed, and the run went on from its snapshot", was_killed and "load" in resumed
        ),
        measure.fact("both runs end in the same bits, on every process", digests[0] == digests[1]),
        measure.Claim(
            text="all processes together", found=together / GIB, limit=ROOM_BYTES / GIB, unit="GiB"
        ),
        measure.Claim(
            text="peak of one process, of all weights, gradients and momenta",
            found=peak / everything if num_parameters >= 5e8 else None,
            limit=MOST_OF_ALL,
        ),
    ]
    if num_parameters < 5e8:
        claims.pop()  # the program itself is larger than such a model
    return measure.report("billion", sheets=sheets, claims=claims, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
