"""Files from strangers: spoilt inputs to every reader of files, and how many of them crash one.

The claim: whatever a run folder, snapshot, record, settings file, weight file or evidence holds, its reader
answers or raises an error of truestep's own, within 20 s and 2 GiB more memory than it began with. Inputs are
good files that were spoilt (tests/security/mutations.py), the same ones for the same seed.

Usage: python benchmarks/fuzz_readers.py [--inputs 100000] [--readers record,report] [--seed 0] [--json]
About a minute for --inputs 300, an hour or two for 100000 on one core. Exit 0 only if nothing crashes.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from measure import Claim, Sheet, report

_ROOM_BYTES = 2 << 30
_SHOWN = 5


def _limit_memory() -> None:
    """A file that makes its reader take much memory is to be an error here, not the end of the machine."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _ROOM_BYTES, resource.RLIM_INFINITY))


def _place(error: BaseException) -> str:
    """Name a crash by its kind and by the last line of truestep's in it."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/truestep/" in frame.filename] or frames
    where = f"{own[-1].filename.rpartition('/truestep/')[2]}:{own[-1].lineno}"
    return f"{type(error).__name__} at {where}: {str(error)[:120]!r}"


def fuzz(name: str, *, num_inputs: int, seed: int) -> dict[str, Any]:
    """Give a reader its inputs, in this process."""
    from tests.security.readers import READERS, Bench

    (reader,) = (item for item in READERS if item.name == name)
    counts: Counter[str] = Counter()
    crashes: dict[str, list[int]] = {}
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="truestep-fuzz-") as folder:
        bench = Bench(reader, Path(folder) / "good")
        bench.read_good()
        _limit_memory()
        for number in range(num_inputs):
            # So that a crash of the whole process can be told: the parent reads the last number.
            os.pwrite(3, f"{number:<12}".encode(), 0)
            try:
                counts[bench.try_input(number, seed=seed)] += 1
            except (Exception, SystemExit) as error:  # noqa: BLE001 - each of them is a crash to be counted
                crashes.setdefault(_place(error), []).append(number)
            except BaseException as error:
                if type(error).__name__ != "Hung":
                    raise
                crashes.setdefault(_place(error), []).append(number)
    seconds = time.monotonic() - begun_s
    return {"counts": counts, "crashes": crashes, "seconds": seconds, "num_inputs": num_inputs}


def _fuzz_apart(name: str, *, num_inputs: int, seed: int) -> dict[str, Any]:
    """The same in a process of its own: a reader may end it."""
    with tempfile.TemporaryFile() as last:
        words = [sys.executable, __file__, "--child", name, "--inputs", str(num_inputs), "--seed", str(seed)]
        os.dup2(last.fileno(), 3, inheritable=True)
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False, pass_fds=(3,))
        if done.returncode == 0:
            found: dict[str, Any] = json.loads(done.stdout)
            return found
        number = int(os.pread(3, 12, 0) or b"-1")
    crash = {f"the process ended with {done.returncode}": [number]}
    return {"counts": {}, "crashes": crash, "seconds": 0.0, "num_inputs": max(number, 0)}


def main() -> int:
    """Run the readers that were asked for, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--readers", default="", help="names with commas between them; all if left out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        print(json.dumps(fuzz(asked.child, num_inputs=asked.inputs, seed=asked.seed)))
        return 0
    from tests.security.readers import READERS

    chosen = [name for name in asked.readers.split(",") if name] or [reader.name for reader in READERS]
    rows, num_crashes = [], 0
    for name in chosen:
        found = _fuzz_apart(name, num_inputs=asked.inputs, seed=asked.seed)
        counts, crashes = found["counts"], found["crashes"]
        num = sum(map(len, crashes.values()))
        num_crashes += num
        row = {"reader": name, "inputs": found["num_inputs"], "read": counts.get("read", 0)}
        rows.append(
            {**row, "own errors": counts.get("refused", 0), "crashes": num, "seconds": found["seconds"]}
        )
        for place, numbers in sorted(crashes.items(), key=lambda item: -len(item[1])):
            print(f"{name}: {place}; inputs {numbers[:_SHOWN]} ({len(numbers)})", file=sys.stderr)
    claim = Claim(text="inputs that crash a reader", found=float(num_crashes), limit=0.0)
    sheet = Sheet(title="Readers of files", rows=rows, num_digits=0)
    return report("fuzz_readers", sheets=[sheet], claims=[claim], as_json=asked.json)


if __name__ == "__main__":
    sys.exit(main())
