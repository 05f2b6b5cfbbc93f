"""The scripts on which `truestep tune` is judged, and how benchmarks run them and keep what is finished.

What is measured on them is left to each benchmark.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

import torch

from truestep.errors import UsageError
from truestep.tune.knob import Knob, ScriptFacts
from truestep.tune.search.compare import Comparison, compare
from truestep.tune.search.race import Contender
from truestep.watch import Script

FOLDER = Path(__file__).with_name("tune")
SCRIPTS = {
    "mlp": "tiny MLP, Adam, no workers",
    "cnn": "CNN on 3x64x64 images, SGD",
    "transformer": "small transformer, AdamW",
    "lstm": "LSTM, AdamW",
    "slow_data": "1 ms to read a sample, no workers",
    "lightning_fit": "autoencoder with Lightning",
    "accelerate_loop": "residual MLP with Accelerate",
}
_START_S = 180.0
MIN_PAIRS = 6
"""Fewer turns than this tell nothing: an interval of one is a point."""


def script_of(name: str) -> Script:
    """Return a script by its name; its path is absolute, so that it can be run from anywhere."""
    return Script(path=str((FOLDER / f"{name}.py").resolve()))


def pick_names(text: str, known: Sequence[str]) -> list[str]:
    """Return the names in a list with commas, all if it is empty."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"there is no {', '.join(unknown)}. There are {', '.join(known)}.")
    return names or list(known)


def look_at(script: Script) -> tuple[ScriptFacts, float]:
    """Return what a script's first step tells, and how long it took to get there.

    Without shares of time: a knob is then left out where it cannot be turned, not where it would not pay.
    """
    begun = time.monotonic()
    with Contender(script, {}, knobs={}) as runner:
        runner.start()
        if runner.first(until_s=begun + _START_S) is None:
            sys.exit(f"{script.path} made no step:\n{runner.tail}")
        start_s = time.monotonic() - begun
        seen: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in runner.facts.items()
        }
    return ScriptFacts(cores=num_cores(), step_s=0.0, **seen), start_s


def num_cores() -> int:
    return len(os.sched_getaffinity(0))


def machine() -> str:
    """Return what the figures depend on, in a line."""
    model = platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = lines[0].partition(":")[2].strip() if lines else model
    return f"{num_cores()} cores of {model}, torch {torch.__version__}"


@contextmanager
def elsewhere() -> Iterator[None]:
    """Stand in an empty folder, as the one that is stood in is copied for every run; clean up if ended."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # scripts that stand still would stay
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        yield


def as_interval(found: Comparison) -> dict[str, Any] | None:
    """Return a ratio as plain values."""
    return found.ratio.as_fields() if found.ratio is not None else None


def compared(
    name: str,
    base: Mapping[str, Any],
    other: Mapping[str, Any],
    *,
    seconds: float,
    knobs: Mapping[str, Knob],
    min_pairs: int = MIN_PAIRS,
) -> dict[str, Any]:
    """Compare two settings of a script; return plain values, `failed` in place of a ratio if none."""
    begun = time.monotonic()
    try:
        found = compare(script_of(name), base, other, seconds=seconds, min_pairs=min_pairs, knobs=knobs)
    except UsageError as error:
        return {"failed": str(error), "seconds": time.monotonic() - begun}
    if found.ratio is None:
        return {"failed": found.failed, "seconds": found.seconds}
    if found.ratio.num < MIN_PAIRS:
        few = f"only {found.ratio.num} pairs of turns in {seconds:.0f} s. Give it more --seconds."
        return {"failed": few, "seconds": found.seconds}
    return {
        "ratio": as_interval(found),
        "memory": found.other_peak_bytes / found.base_peak_bytes if found.base_peak_bytes else None,
        "seconds": found.seconds,
    }


def say(words: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {words}", file=sys.stderr, flush=True)


class Kept:
    """Finished parts of a long benchmark, in a JSON file if one is named: what is there is not done again."""

    def __init__(self, path: str | None) -> None:
        self._path = Path(path).resolve() if path else None
        self._parts: dict[str, Any] = {}
        if self._path is not None and self._path.exists():
            self._parts = json.loads(self._path.read_text())

    def part(self, name: str, make: Callable[[], Any]) -> Any:
        """Return a part, made now unless it is there. One that has failed is not kept."""
        if name in self._parts:
            return self._parts[name]
        made = json.loads(json.dumps(make()))
        if isinstance(made, dict) and made.get("failed"):
            return made
        self._parts[name] = made
        if self._path is not None:
            beside = self._path.with_name(f"{self._path.name}.new")
            beside.write_text(json.dumps(self._parts, indent=1) + "\n")
            beside.replace(self._path)
        return made
