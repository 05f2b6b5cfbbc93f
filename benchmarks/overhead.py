"""What training loops cost per step over the bare PyTorch loop, and what importing truestep costs over torch.

Owns tasks, claims and command; the loops and the stopwatch are in overhead_loops.py.
Exit code: 0 all claims hold, 1 one fails, 2 one cannot be told (left out by --only, or too noisy a machine).
"""

from __future__ import annotations

import argparse
import gc
import logging
import math
import os
import pty
import statistics
import subprocess
import sys
import tempfile
import termios
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import overhead_loops as loops
import torch
from measure import Claim, Row, Sheet, estimate_with_error, fact, interleave, report, spread
from torch import nn

MAX_STEP_US = 25.0
MAX_RATIO = 1.01
MAX_IMPORT_S = 0.1
MIN_DRAWN_BYTES = 300
"""Of a turn with a bar: a few refreshes of a line."""


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A contender: its row's name, what makes it, and whether it draws a bar."""

    label: str
    make: Callable[[loops.Bench], Callable[[int], None]]
    draws: bool = False


LOOPS: Mapping[str, Loop] = {
    "bare": Loop(label="bare loop, against itself", make=loops.bare),
    "truestep": Loop(label="truestep, everything on", make=loops.truestep, draws=True),
    "ignite": Loop(label="Ignite, custom step", make=loops.ignite_custom),
    "ignite-bar": Loop(label="Ignite, supervised, bar and average", make=loops.ignite_supervised, draws=True),
    "fabric": Loop(label="Fabric", make=loops.fabric),
    "accelerate": Loop(label="Accelerate", make=loops.accelerate),
    "lightning": Loop(label="Lightning Trainer, everything off", make=loops.lightning_off),
    "lightning-bar": Loop(label="Lightning Trainer, bar and log", make=loops.lightning_bar, draws=True),
    "hf": Loop(label="Hugging Face Trainer", make=loops.hf_trainer, draws=True),
}
PRECISE = ("bare", "truestep", "ignite")
"""Those whose figures are compared closely: they get most of the time."""
PEERS = [name for name in LOOPS if name not in ("bare", "truestep")]


def make_tiny() -> loops.Task:
    """An MLP whose step takes about 360 us on one core: overhead cannot hide in it."""
    return loops.Task(
        make_layers=lambda: [nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)],
        batches=make_batches(num_batches=64, shape=(32, 32)),
        num_warm=24,
        num_own=4,
        num_bare=1,
        num_rewarm=1,
    )


def make_small() -> loops.Task:
    """A CNN of 148 thousand parameters whose step takes about 15 ms on one core."""
    return loops.Task(
        make_layers=lambda: [
            *conv(3, 40),
            nn.MaxPool2d(2),
            *conv(40, 80),
            nn.MaxPool2d(2),
            *conv(80, 160),
            *head(160),
        ],
        batches=make_batches(num_batches=16, shape=(8, 3, 32, 32)),
        num_warm=4,
        num_own=1,
        num_bare=1,
        num_rewarm=0,
    )


def conv(num_in: int, num_out: int) -> list[nn.Module]:
    return [nn.Conv2d(num_in, num_out, 3, padding=1), nn.BatchNorm2d(num_out), nn.ReLU()]


def head(num_features: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(num_features, 10)]


def make_batches(*, num_batches: int, shape: tuple[int, ...]) -> list[loops.Pair]:
    source = torch.Generator().manual_seed(1)
    return [
        (torch.randn(shape, generator=source), torch.randint(0, 10, shape[:1], generator=source))
        for _ in range(num_batches)
    ]


@contextmanager
def terminal() -> Iterator[Callable[[], int]]:
    """Put standard output and error on a pseudo-terminal, so that every bar is drawn; gives the bytes so far.

    A `cat` in a process of its own empties it: a thread here would take turns with the loops that are timed.
    """
    saved = [os.dup(1), os.dup(2)]
    drawn = tempfile.TemporaryFile()  # noqa: SIM115  closed below
    outer, inner = pty.openpty()
    termios.tcsetwinsize(inner, (30, 120))
    cat = subprocess.Popen(["cat"], stdin=outer, stdout=drawn, stderr=subprocess.DEVNULL)
    os.close(outer)
    sys.stdout.flush()
    os.dup2(inner, 1)
    os.dup2(inner, 2)
    os.close(inner)
    try:
        yield lambda: os.fstat(drawn.fileno()).st_size
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, handle in zip((1, 2), saved, strict=True):
            os.dup2(handle, number)
            os.close(handle)
        cat.wait(timeout=10)  # the terminal's last writer is gone, so its reader ends
        drawn.close()


def quieten() -> None:
    """Mute the frameworks' advice. Bars and logged values are features and stay on."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TERM="xterm-256color")
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "lightning.fabric", "ignite", "accelerate", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)


def race(
    task: loops.Task, num_steps: Mapping[str, int], drawn: Drawn, **timing: Any
) -> dict[str, list[loops.Lap]]:
    """Interleave loops on one task, each with its steps per turn; `timing` is that of `interleave`."""
    torch.manual_seed(0)
    bench = loops.Bench(task)
    turns = {}
    with bench.resources:
        for name in num_steps:
            turns[name] = drawn.counting(name, partial(bench.contender(LOOPS[name].make), num_steps[name]))
            turns[name]()
        # One framework's steps shall not pay for collecting the garbage of the modules of all of them.
        gc.collect()
        gc.freeze()
        return interleave(turns, **timing)


class Drawn:
    """How many bytes each contender has put on the terminal."""

    def __init__(self, num_bytes: Callable[[], int]) -> None:
        self._num_bytes = num_bytes
        self.turns: dict[str, list[int]] = {}

    def counting(self, name: str, turn: Callable[[], loops.Lap]) -> Callable[[], loops.Lap]:
        def count() -> loops.Lap:
            before = self._num_bytes()
            lap = turn()
            sys.stdout.flush()
            # Lets `cat` catch up, else the next contender is credited with the rest; lets writers end.
            time.sleep(0.03)
            self.turns.setdefault(name, []).append(self._num_bytes() - before)
            return lap

        return count

    def per_turn(self, name: str) -> float:
        return statistics.fmean(self.turns[name])


def at_full_speed(laps: Sequence[loops.Lap]) -> float:
    """Mean overhead in us over that quarter of all blocks of steps in which the bare loop was fastest.

    A slowed machine stretches the overhead with the step, and the claim is about a step at full speed.
    Choosing by the bare loop alone favours no contender, and keeps blocks in which a bar was drawn.
    """
    blocks = sorted((block for lap in laps for block in lap.blocks(10)), key=lambda block: block[1])
    return statistics.fmean((own - bare) * 1e6 for own, bare in blocks[: max(1, len(blocks) // 4)])


def find_overheads(results: Mapping[str, Sequence[loops.Lap]]) -> dict[str, tuple[float, float]]:
    """Each loop's overhead and error, less that of the bare loop against itself: the method's own bias."""
    raw = {name: estimate_with_error(laps, at_full_speed) for name, laps in results.items()}
    zero, zero_error = raw["bare"]
    return {name: (found - zero, math.hypot(error, zero_error)) for name, (found, error) in raw.items()}


def list_tiny(results: Mapping[str, Sequence[loops.Lap]], drawn: Drawn) -> Sheet:
    rows: list[Row] = []
    overheads = find_overheads(results)
    bare_min_s = min(lap.own_s for lap in results["bare"])
    for name, laps in results.items():
        every = spread([(lap.own_s - lap.bare_s) * 1e6 for lap in laps])
        rows.append(
            {
                "loop": LOOPS[name].label,
                "full speed": overheads[name][0],
                "±": overheads[name][1],
                "all turns": every.median,
                "quartiles": f"{every.low:,.1f} to {every.high:,.1f}",
                "minimum": (min(lap.own_s for lap in laps) - bare_min_s) * 1e6,
                "typical step": statistics.median(lap.typical_s for lap in laps) * 1e6,
                "turns": str(len(laps)),
                "drawn": f"{drawn.per_turn(name) / 1000:,.1f} kB",
            }
        )
    bare_us = spread([lap.bare_s * 1e6 for laps in results.values() for lap in laps])
    fastest_us = min(lap.bare_s for laps in results.values() for lap in laps) * 1e6
    note = (
        f"The bare step took {fastest_us:.0f} us at best, {bare_us.median:.0f} in the median. "
        "full speed (judged): mean of the quarter of blocks of 40 steps with the fastest bare loop, less "
        "that of the bare loop itself. all turns: as timed. minimum: least turn less the bare loop's least. "
        "typical step: one without refreshes and flushes. drawn: on a terminal, per turn."
    )
    return Sheet(title="Microseconds per step over the bare loop, tiny MLP", rows=rows, note=note)


def to_bare(laps: Sequence[loops.Lap]) -> float:
    """Mean ratio of a step to the mean of the bare steps before and after it.

    Ratios far from the middle one are cut to a third more or less: a step that took twice as long as its
    neighbours was disturbed from outside; one in which a bar was drawn is a tenth longer, and counts.
    """
    logs = [
        math.log(2 * own / (before + after))
        for lap in laps
        for own, before, after in zip(lap.own, lap.bare, lap.bare[1:], strict=False)
    ]
    middle = statistics.median(logs)
    return math.exp(statistics.fmean(min(max(value, middle - 0.3), middle + 0.3) for value in logs))


def list_small(results: Mapping[str, Sequence[loops.Lap]]) -> Sheet:
    rows: list[Row] = []
    for name, laps in results.items():
        ratio, error = estimate_with_error(laps, to_bare)
        turns = spread([lap.own_s / lap.bare_s for lap in laps])
        rows.append(
            {
                "loop": LOOPS[name].label,
                "ratio": ratio,
                "±": error,
                "turns' quartiles": f"{turns.low:.3f} to {turns.high:.3f}",
                "bare step, ms": f"{statistics.median(lap.bare_s for lap in laps) * 1e3:.1f}",
                "steps": str(sum(len(lap.own) for lap in laps)),
            }
        )
    return Sheet(title="Time of a step over the bare loop's, small CNN", rows=rows, num_digits=4)


IMPORT_CODE = """
from time import perf_counter as now
begun = now(); import torch; half = now(); import truestep; truestep.Run; done = now()
print(half - begun, done - half)
"""
HELP_CODE = """
import sys
sys.argv = ["truestep", "--help"]
from truestep.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print("torch" in sys.modules)
"""


def time_imports(num_processes: int) -> tuple[Sheet, float]:
    """Import torch, then truestep, in fresh processes: each is its own control. The first warms the disk."""
    pairs = []
    for _ in range(num_processes + 1):
        words = run_python(IMPORT_CODE).split()
        pairs.append((float(words[0]), float(words[1])))
    torch_s, ours_s = ([pair[i] for pair in pairs[1:]] for i in (0, 1))
    rows: list[Row] = [
        {"import": name, "least": min(values), "median": statistics.median(values)}
        for name, values in (("torch", torch_s), ("truestep.Run, over torch", ours_s))
    ]
    note = "The least is judged: importing is fixed work, and all noise adds to it."
    return Sheet(title="Seconds to import", rows=rows, note=note, num_digits=3), min(ours_s)


def run_python(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"{code.strip()}\nended with code {result.returncode}:\n{result.stderr}")
    return result.stdout


def judge(
    tiny: Mapping[str, Sequence[loops.Lap]], small: Mapping[str, Sequence[loops.Lap]], drawn: Drawn
) -> list[Claim]:
    """The claims about steps; those about imports are made where they are timed."""
    overheads = find_overheads(tiny)
    ours, error = overheads.get("truestep", (None, 0.0))
    best = min(PEERS, key=lambda name: overheads[name][0]) if set(PEERS) <= set(tiny) else None
    margin, margin_error = None, 0.0
    if ours is not None and best:
        margin, margin_error = ours - overheads[best][0], math.hypot(error, overheads[best][1])
    ratio, ratio_error = None, 0.0
    if "truestep" in small:
        ratio, ratio_error = estimate_with_error(small["truestep"], to_bare)
    bars = [drawn.per_turn(name) > MIN_DRAWN_BYTES for name in tiny if LOOPS[name].draws]
    beats = f"truestep less the best peer ({LOOPS[best].label})" if best else "truestep less the best peer"
    return [
        Claim(
            text="truestep over the bare loop, tiny MLP",
            found=ours,
            limit=MAX_STEP_US,
            error=error,
            unit="us",
        ),
        Claim(text=beats, found=margin, limit=0.0, error=margin_error, unit="us"),
        Claim(
            text="truestep to the bare loop, small CNN",
            found=ratio,
            limit=MAX_RATIO,
            error=ratio_error,
            unit="times",
        ),
        fact("every bar was really drawn", all(bars) if bars else None),
    ]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="comma-separated: " + ",".join(LOOPS) + " (bare is always there)")
    parser.add_argument("--quick", action="store_true", help="about a minute, with wider spreads")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(LOOPS)
    unknown = [name for name in names if name not in LOOPS]
    if unknown:
        parser.error(f"--only knows {', '.join(LOOPS)}; got {', '.join(unknown)}.")
    options.names = [name for name in LOOPS if name in names or name == "bare"]
    return options


def main() -> int:
    options = parse()
    begun = time.perf_counter()
    # Seconds after the start at which each part shall be over, imports of all frameworks included.
    tiny_end, small_end, min_rounds = (30, 45, 2) if options.quick else (120, 190, 3)
    quieten()
    torch.set_num_threads(1)
    # Turns of half a second and more for the light ones: truestep writes and draws twice a second.
    many, few = (480, 120) if options.quick else (1600, 400)
    tiny_steps = {name: many if name in PRECISE else few for name in options.names}
    many, few = (24, 4) if options.quick else (64, 16)
    small_steps = {name: many if name == "truestep" else few for name in options.names}
    with terminal() as num_bytes:
        drawn = Drawn(num_bytes)
        left = tiny_end - (time.perf_counter() - begun)
        more = dict.fromkeys(PRECISE, 2)
        tiny = race(make_tiny(), tiny_steps, drawn, seconds=left, num_turns=more, min_rounds=min_rounds)
        sheets = [list_tiny(tiny, drawn)]
        left = small_end - (time.perf_counter() - begun)
        more = {"truestep": 3}
        small = race(make_small(), small_steps, drawn, seconds=left, num_turns=more, min_rounds=min_rounds)
    sheets.append(list_small(small))
    claims = judge(tiny, small, drawn)
    import_s, is_lazy = None, None
    if "truestep" in options.names:
        sheet, import_s = time_imports(2 if options.quick else 6)
        sheets.append(sheet)
        is_lazy = run_python(HELP_CODE).split()[-1] == "False"
    claims.append(
        Claim(text="importing truestep.Run over torch", found=import_s, limit=MAX_IMPORT_S, unit="s")
    )
    claims.append(fact("`truestep --help` does not import torch", is_lazy))
    return report("overhead", sheets=sheets, claims=claims, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
