"""What truestep costs on several processes over plain DDP and plain FSDP2: time, memory, bytes and messages.

All loops run in the same processes, taking turns in random order with a barrier around each turn, one lane
per process: all compute the same batches. A ratio is that of turns of one round. The bare loops have two
turns a round: how much these differ tells what the machine can tell. The loops are in parallel_loops.py.
Prints tables, or with --json one JSON object. Exit status 0 only if every claim holds, 2 if it cannot tell.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import random
import resource
import statistics
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import NamedTuple

import parallel_loops as loops
import torch
import torch.distributed as dist
from measure import Claim, Row, Sheet, fact, report, spread

from truestep.dist.reduce import TreeReduce, cost

PARTS = ("compute", "communication", "memory", "traffic")
CLAIMED = ("truestep ddp", "truestep fsdp")
BARE = tuple(dict.fromkeys(loops.BARE_OF.values()))
MAX_UNREST = 0.05
MIN_ROUNDS = 5
MEMORY_SIZE = 2
NUM_MEMORY_STEPS = 4
COUNTED_SIZES = range(2, 9)
COUNTED_LANES = 8
NUM_VALUES = 1_000_003
"""Of the vector that is summed to count messages: nothing divides it."""
COMPUTED = [(1000, 1000), (1024, 1024), (1000, 1024), (10_000, 10_000), (16_384, 16_384), (10_000, 16_384)]
"""Processes and lanes."""


class Lap(NamedTuple):
    """One turn: milliseconds per step by the clock, and of processor time of all threads of all processes."""

    clock: float
    processor: float


Laps = dict[str, list[list[Lap]]]
"""For each loop and round: its turns."""


def take_turns(task_name: str, root: Path, seconds: float) -> Laps:
    """Run on each process: rounds of all loops until the first one's clock says that it is enough."""
    _quieten()
    bench = loops.Bench(loops.TASKS[task_name], root)
    turns = {name: loops.contend(bench, name) for name in loops.LOOPS}
    names = [*turns, *BARE]
    laps: Laps = {name: [] for name in turns}
    order = random.Random(0)
    with bench.resources:
        for turn in turns.values():
            turn(3)  # memory is there and buckets are final from now on
        gc.collect()
        gc.freeze()
        begun = perf_counter()
        while len(laps["ddp"]) < MIN_ROUNDS or _all_say(perf_counter() - begun < seconds):
            order.shuffle(names)
            for of_loop in laps.values():
                of_loop.append([])
            for name in names:
                laps[name][-1].append(_time(turns[name], bench.task.num_steps))
    return laps


def _time(turn: loops.Loop, num_steps: int) -> Lap:
    turn(1)  # the caches that another loop left are not this one's cost
    dist.barrier()
    begun, busy = perf_counter(), process_time()
    turn(num_steps)
    processor = torch.tensor(process_time() - busy, dtype=torch.float64)
    dist.barrier()
    clock = perf_counter() - begun
    dist.all_reduce(processor)
    return Lap(clock / num_steps * 1e3, processor.item() / num_steps * 1e3)


def _all_say(is_so: bool) -> bool:
    """What the first process says counts."""
    flag = torch.tensor(float(is_so))
    dist.broadcast(flag, src=0)
    return bool(flag.item())


def _quieten() -> None:
    """Mute torch's advice: that a flag of DDP's is slow is part of what is measured."""
    warnings.simplefilter("ignore")
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 2)


def measure_memory(task_name: str, name: str, root: Path) -> float:
    """Run on each process, which is a fresh one: MB by which some steps raise its peak resident memory."""
    _quieten()
    dist.all_reduce(torch.ones(1))
    bench = loops.Bench(loops.TASKS[task_name], root)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with bench.resources:
        loops.contend(bench, name)(NUM_MEMORY_STEPS)
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def count_traffic() -> list[tuple[int, int]]:
    """Run on each of eight processes: bytes and messages it sends in groups of the first 2 to 8 of them."""
    counts = []
    for size in COUNTED_SIZES:
        group = dist.new_group(list(range(size)))
        if dist.get_rank() >= size:
            counts.append((0, 0))
            continue
        tree = TreeReduce(rank=dist.get_rank(), size=size, num_lanes=COUNTED_LANES, group=group)
        tree.all_reduce([torch.ones(NUM_VALUES) for _ in tree.nodes])
        counts.append((tree.num_bytes_sent, tree.num_messages))
    return counts


def find_ratios(laps: Laps, name: str, *, of: int = 0) -> list[float]:
    """Each round's ratio to the bare loop's two turns; a bare loop's one turn to its other."""
    if name in BARE:
        return [first[of] / second[of] for first, second in laps[name]]
    bare = laps[loops.BARE_OF[name]]
    return [
        own[of] / statistics.fmean(lap[of] for lap in theirs)
        for (own,), theirs in zip(laps[name], bare, strict=True)
    ]


def list_times(task: loops.Task, size: int, laps: Laps) -> Sheet:
    rows: list[Row] = []
    for name, rounds in laps.items():
        ratio = spread(find_ratios(laps, name))
        processor = spread(find_ratios(laps, name, of=1))
        times = [lap.clock for turns in rounds for lap in turns]
        rows.append(
            {
                "loop": name,
                "against": "itself" if name in BARE else loops.BARE_OF[name],
                "ms": f"{statistics.median(times):,.1f}",
                "least": f"{min(times):,.1f}",
                "ratio": ratio.median,
                "quartiles": f"{ratio.low:.2f} to {ratio.high:.2f}",
                "±": ratio.error,
                "processor": processor.median,
                "its quartiles": f"{processor.low:.2f} to {processor.high:.2f}",
                "rounds": f"{len(rounds)}",
            }
        )
    return Sheet(title=f"{task.name}, {size} processes", rows=rows, num_digits=3)


def claim_times(task: loops.Task, size: int, laps: Laps | None) -> list[Claim]:
    claims = []
    for name in CLAIMED:
        ratio = spread(find_ratios(laps, name)) if laps is not None else None
        claims.append(
            Claim(
                text=f"{task.name}, {size} processes: {name} to plain {loops.BARE_OF[name]}",
                found=ratio and ratio.median,
                limit=task.limit,
                # What the machine makes of two turns of one loop, it makes of two loops too.
                error=math.hypot(ratio.error, find_unrest(laps, name)) if laps and ratio else 0.0,
                unit="times",
            )
        )
    return claims


def find_unrest(laps: Laps, name: str) -> float:
    """How far the bare loop that one is compared with is from itself, and how surely."""
    itself = spread(find_ratios(laps, loops.BARE_OF.get(name, name)))
    return abs(itself.median - 1) + itself.error


def claim_calm(task: loops.Task, size: int, laps: Laps | None) -> Claim:
    """A ratio is worth what the machine can tell: where a loop differs from itself, nothing is decided."""
    found = None
    if laps is not None:
        found = max(abs(spread(find_ratios(laps, name)).median - 1) for name in BARE)
    text = f"{task.name}, {size} processes: each plain loop to itself, off by"
    return Claim(text=text, found=found, limit=MAX_UNREST, error=math.inf)


def race(options: argparse.Namespace) -> tuple[list[Sheet], list[Claim]]:
    sheets, claims = [], []
    for key, task in loops.TASKS.items():
        for size in options.sizes:
            laps = None
            if key in options.only:
                load = os.getloadavg()[0]
                with tempfile.TemporaryDirectory() as root:
                    laps = loops.run_processes(take_turns, key, Path(root), options.seconds, size=size)[0]
                sheet = list_times(task, size, laps)
                note = (
                    f"Load just before: {load:.1f} on {os.cpu_count()} cores. Processor: ratio of its time."
                )
                rows = [{**row, "load before": f"{load:.1f}"} for row in sheet.rows]
                sheets.append(Sheet(title=sheet.title, rows=rows, num_digits=3, note=note))
            claims += [*claim_times(task, size, laps), claim_calm(task, size, laps)]
    return sheets, claims


def list_memory() -> Sheet:
    rows: list[Row] = []
    for name in loops.LOOPS:
        with tempfile.TemporaryDirectory() as root:
            found = loops.run_processes(measure_memory, "communication", name, Path(root), size=MEMORY_SIZE)
        rows.append({"loop": name, "MB": max(found)})
    model = loops.TASKS["communication"].make_model()
    num_mb = sum(parameter.nbytes for parameter in model.parameters()) / 2**20
    note = (
        f"Rise of ru_maxrss over building and {NUM_MEMORY_STEPS} steps, the larger of {MEMORY_SIZE} fresh "
        f"processes. Parameters are {num_mb:.0f} MB; with gradients and two moments {4 * num_mb:.0f}."
    )
    return Sheet(title="Peak memory per process, communication-bound", rows=rows, note=note, num_digits=0)


def list_traffic() -> tuple[Sheet, Claim]:
    found = loops.run_processes(count_traffic, size=max(COUNTED_SIZES))
    num_bytes = 4 * NUM_VALUES
    rows: list[Row] = []
    is_so = True
    for index, size in enumerate(COUNTED_SIZES):
        counted = tuple(max(counts[index][which] for counts in found) for which in (0, 1))
        computed = cost(size=size, num_lanes=COUNTED_LANES, num_bytes=num_bytes)
        is_so = is_so and counted == computed
        rows.append(_traffic_row(f"{size}", COUNTED_LANES, size, counted, num_bytes, how="counted"))
    for size, num_lanes in COMPUTED:
        computed = cost(size=size, num_lanes=num_lanes, num_bytes=num_bytes)
        rows.append(_traffic_row(f"{size:,}", num_lanes, size, computed, num_bytes, how="computed"))
    sheet = Sheet(
        title=f"Most that one process sends to sum {NUM_VALUES:,} float32",
        rows=rows,
        note="Volume and that of a ring: in units of the vector's own bytes.",
        num_digits=3,
    )
    return sheet, fact("bytes and messages counted on 2 to 8 processes are those of the formula", is_so)


def _traffic_row(
    label: str, num_lanes: int, size: int, sent: Sequence[int], num_bytes: int, *, how: str
) -> Row:
    return {
        "processes": label,
        "lanes": f"{num_lanes:,}",
        "bytes": f"{sent[0]:,}",
        "volume": sent[0] / num_bytes,
        "ring": 2 * (size - 1) / size,
        "messages": f"{sent[1]:,}",
        "ring's messages": f"{2 * (size - 1):,}",
        "how": how,
    }


def main() -> int:
    """Measure, print, and return 0 if every claim holds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--sizes", nargs="+", type=int, default=[2, 4], help="numbers of processes")
    parser.add_argument("--seconds", type=float, default=120.0, help="for each task and number of processes")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args()
    sheets, claims = race(options)
    if "memory" in options.only:
        sheets.append(list_memory())
    if "traffic" in options.only:
        sheet, claim = list_traffic()
        sheets.append(sheet)
        claims.append(claim)
    else:
        claims.append(fact("bytes and messages are those of the formula", None))
    return report("parallel_cost", sheets=sheets, claims=claims, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
