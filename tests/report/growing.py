"""Records that grow under a test: written by the real writer, of processes that are really there."""

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from truestep.record import VERSION, Record


class Writer:
    """Writes what a run would write."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.record = Record(folder / "record.jsonl")

    def start(self, *, cursor: int = 0, pids: list[int] | None = None, end: int | None = 100) -> None:
        """A life begins; of this process if none is named."""
        pids = pids or [os.getpid()]
        self.record.write(
            "start",
            version=VERSION,
            run="r1",
            cursor=cursor,
            pid=pids[0],
            pids=pids,
            host=platform.node(),
            argv=["python", "train.py"],
            processes=len(pids),
            note=None,
            recipe={"seed": 7, "placement": [{"precision": "fp32"}]},
            fingerprint={"torch": "2.13.0", "threads": 1},
        )
        self.record.write("phase", first=0, end=end)

    def steps(self, first: int, losses: list[float]) -> None:
        """Steps of ten milliseconds each."""
        ends_us = [(first + offset + 1) * 10_000 for offset in range(len(losses))]
        self.record.write("steps", first=first, loss=losses, end_us=ends_us)

    def values(self, name: str, steps: list[int], values: list[float]) -> None:
        self.record.write("values", name=name, steps=steps, values=values)


@contextmanager
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing, ended afterwards."""
    process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()
