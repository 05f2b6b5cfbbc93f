"""What scale_model.py measures: steps and sums in real gloo processes, snapshots, restarts, the order.

Owns the workloads and how a turn is timed. What is fitted and what is predicted is scale_formulas.py's.
"""

from __future__ import annotations

import gc
import itertools
import os
import random
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import parallel_loops as loops
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.optim import AdamW

import truestep as ts
from truestep.checkpoint import BackgroundSaver, Snapshot, Store
from truestep.data.permutation import Order
from truestep.dist import World, schedule
from truestep.dist.reduce import TreeReduce
from truestep.train.exchange import Exchange, Word

TURN_S = 0.3
MIN_ROUNDS, MIN_QUIET = 6, 5
MAX_OTHERS = 0.1
"""Cores that others may use while a turn lasts that counts as quiet."""
RING, ADD, PACK = "small talk", "add", "pack"
ADD_BYTES = 1 << 22
CHUNK = 32_768


class Turn(NamedTuple):
    """One turn: seconds by the clock and of all processes' processor time, and cores that others used."""

    clock_s: float
    processor_s: float
    others: float


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A training loop to time: a model of square layers, so many lanes of so many samples."""

    width: int
    num_blocks: int
    num_lanes: int
    num_samples: int

    @property
    def num_bytes(self) -> int:
        """Of the gradients."""
        return 4 * self.num_blocks * (self.width**2 + self.width)


@dataclass(frozen=True, kw_only=True)
class Sum:
    """A vector to sum in the tree."""

    num_bytes: int
    num_lanes: int


What = Loop | Sum | str


def quietest(turns: Sequence[Turn]) -> Turn:
    """Return what the turns took in which others left the machine alone; if there are few, the quieter half.

    Which turns count is decided by what others did, not by how long they took. On a busy machine processor
    time is no help: gloo's thread polls while a message waits for its receiver, and waits are long then.
    """
    quiet = [turn for turn in turns if turn.others <= MAX_OTHERS]
    if len(quiet) < MIN_QUIET:
        quiet = sorted(turns, key=lambda turn: turn.others)[: max(3, len(turns) // 2)]
    clocks, processor, others = zip(*quiet, strict=True)
    return Turn(statistics.median(clocks), statistics.median(processor), max(others))


def time_all(whats: Mapping[str, What], root: Path, seconds: float) -> dict[str, list[Turn]]:
    """Run on each process of a group: all contenders in random order until the time is over."""
    gc.disable()
    runs = {name: _make(what, root / name) for name, what in whats.items()}
    numbers = {name: _calibrate(run) for name, run in runs.items()}
    turns: dict[str, list[Turn]] = {name: [] for name in whats}
    order, names = random.Random(0), list(whats)
    begun_s, num_rounds = time.perf_counter(), 0
    while num_rounds < MIN_ROUNDS or _all_say(time.perf_counter() - begun_s < seconds):
        num_rounds += 1
        order.shuffle(names)
        for name in names:
            turns[name].append(_time(runs[name], numbers[name]))
    return turns


def count_sockets() -> int:
    """Run on each process of a group: how many connections it holds after a `Run` was made."""
    with tempfile.TemporaryDirectory() as folder:
        shared = [folder]
        dist.broadcast_object_list(shared, src=0)
        run = ts.Run(shared[0], seed=0, lanes=8, progress=False)
        number = sum(path.is_socket() for path in Path("/proc/self/fd").iterdir())
        run.close()
        dist.barrier()
    return number


def pin(cores: int) -> None:
    """Let this process, and all that it starts from now on, use so many cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-cores:])


def _make(what: What, root: Path) -> Callable[[], None]:
    size = dist.get_world_size()
    if isinstance(what, Loop):
        return _make_loop(what, root)
    if isinstance(what, Sum):
        tree = TreeReduce(rank=dist.get_rank(), size=size, num_lanes=what.num_lanes, group=dist.new_group())
        parts = [torch.zeros(what.num_bytes // 4) for _ in tree.nodes]
        return lambda: _drop(tree.all_reduce(parts))
    left, right = torch.ones(ADD_BYTES // 4), torch.zeros(ADD_BYTES // 4)
    talk = torch.zeros(23, dtype=torch.float64)
    works: Mapping[str, Callable[[], object]] = {
        RING: lambda: dist.all_reduce(talk),
        ADD: lambda: left.add_(right),
        PACK: lambda: left.copy_(right),
    }
    return lambda: _drop(works[what]())


def _drop(_: object) -> None:
    """Results are not what is wanted."""


def _make_loop(what: Loop, root: Path) -> Callable[[], None]:
    run = ts.Run(
        root, seed=0, lanes=what.num_lanes, threads=1, snapshots=ts.Snapshots(every_s=None), progress=False
    )
    model: nn.Module = loops.Wide(width=what.width, num_blocks=what.num_blocks)
    model = run.place(model, parallel="flat")
    optimizer = AdamW(model.parameters(), lr=1e-6, fused=True)
    run.track(model=model, optimizer=optimizer)
    source = torch.Generator().manual_seed(1)
    shape = what.num_samples, what.width
    lane = torch.randn(shape, generator=source), torch.randint(0, what.width, shape[:1], generator=source)
    # Each item is a lane's batch: what is measured is not the fetching of data.
    steps = run.steps(ts.Loader([lane] * what.num_lanes, batch_size=None), steps=10**9)

    def train() -> None:
        step = next(steps)
        for x, y in step:
            step.backward(F.cross_entropy(model(x), y))
        step.update(optimizer, clip_norm=1e-3)

    return train


def _calibrate(run: Callable[[], None]) -> int:
    """Return how often it is done in a turn, the same on all processes."""
    for _ in range(3):
        run()
    dist.barrier()
    begun_s = time.perf_counter()
    run()
    run()
    number = torch.tensor(max(1, int(2 * TURN_S / (time.perf_counter() - begun_s))))
    dist.broadcast(number, src=0)
    return int(number.item())


def _time(run: Callable[[], None], number: int) -> Turn:
    run()
    dist.barrier()
    begun_s, busy_s, own_s = time.perf_counter(), _busy_s(), time.process_time()
    for _ in range(number):
        run()
    own = torch.tensor(time.process_time() - own_s, dtype=torch.float64)
    dist.barrier()
    clock_s, busy_s = time.perf_counter() - begun_s, _busy_s() - busy_s
    dist.all_reduce(own)
    others = max(0.0, busy_s - own.item()) / clock_s
    return Turn(clock_s / number, own.item() / number, others)


def _busy_s() -> float:
    """Seconds that all cores together have worked, or were taken away, since the machine started."""
    user, nice, system, _, _, _, _, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + steal) / os.sysconf("SC_CLK_TCK")


def _all_say(is_so: bool) -> bool:
    flag = torch.tensor(float(is_so))
    dist.broadcast(flag, src=0)
    return bool(flag.item())


Pair = tuple[float, float]
"""Seconds of something, and the cores that others used meanwhile."""


def settle(turns: Sequence[Sequence[float]]) -> Pair:
    """Return what the quietest turns took, as `quietest` does."""
    found = quietest([Turn(seconds, 0.0, others) for seconds, others in turns])
    return found.clock_s, found.others


def low(values: Sequence[float]) -> float:
    """The lower quartile: what disturbs only ever takes longer."""
    return statistics.quantiles(values, n=4, method="inclusive")[0] if len(values) > 1 else values[0]


class Watch:
    """Finds out how much of the machine others use while this process and its children work."""

    def __init__(self) -> None:
        self._begun = self._now()

    def others(self) -> float:
        """Cores that others used since the watch was made."""
        clock_s, busy_s, own_s = (now - begun for now, begun in zip(self._now(), self._begun, strict=True))
        return max(0.0, busy_s - own_s) / clock_s

    def _now(self) -> tuple[float, float, float]:
        own = os.times()
        return time.perf_counter(), _busy_s(), own.user + own.system + own.children_user + own.children_system


def time_snapshots(sizes: Sequence[int], *, num_rounds: int) -> dict[str, dict[int, list[Pair]]]:
    """Return seconds of holding the loop, of writing and of reading, by bytes, in rounds of all sizes."""
    found: dict[str, dict[int, list[Pair]]] = {
        name: {size: [] for size in sizes} for name in ("hold", "write", "read")
    }
    with tempfile.TemporaryDirectory() as root:
        stores = {size: Store(Path(root, str(size)), run_id="model") for size in sizes}
        savers = {size: BackgroundSaver(store) for size, store in stores.items()}
        states = {size: {str(part): torch.rand(size // 32) for part in range(8)} for size in sizes}
        for number in range(num_rounds + 1):
            watch, seconds = Watch(), {}
            for size in random.Random(number).sample(list(sizes), len(sizes)):
                begun_s = time.perf_counter()
                savers[size].submit(Snapshot(cursor=number, states={"state": states[size]}, facts={}))
                hold_s = time.perf_counter() - begun_s
                savers[size].wait()
                begun_s = time.perf_counter()
                stores[size].load_newest()
                seconds[size] = hold_s, savers[size].write_s or 0.0, time.perf_counter() - begun_s
            others = watch.others()
            for size, values in seconds.items() if number else ():  # the first pays for fresh memory
                for by_size, value in zip(found.values(), values, strict=True):
                    by_size[size].append((value, others))
    return found


RESTARTED = """
import os, signal, sys, time
begun_s = time.time()
import torch
import torch.nn.functional as F
import truestep as ts

imported_s = time.time()
folder, num_blocks = sys.argv[1], int(sys.argv[2])
run = ts.Run(folder, seed=0, lanes=8, threads=1, progress=False,
             snapshots=ts.Snapshots(every_s=None, every_steps=2))
joined_s = time.time()
layers = (torch.nn.Linear(512, 512) for _ in range(num_blocks))
model = run.place(torch.nn.Sequential(*layers), parallel="flat")
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
run.track(model=model, optimizer=optimizer)
lane = torch.zeros(1, 512), torch.zeros(1, dtype=torch.int64)
is_again = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
for step in run.steps(ts.Loader([lane] * 8, batch_size=None), steps=100):
    for x, y in step:
        step.backward(F.cross_entropy(model(x), y))
    step.update(optimizer)
    if is_again:
        if run.is_first:
            print("again", begun_s, imported_s, joined_s, time.time(), flush=True)
        os._exit(0)
    if step.index == 6 and os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1):
        time.sleep(0.5)  # the snapshot is written
        print("killed", time.time(), file=open(os.path.join(folder, "killed"), "w"), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""


class Restarted(NamedTuple):
    """Seconds from a kill on: until Python runs again, importing, joining, loading and the first step."""

    total_s: float
    launch_s: float
    import_s: float
    join_s: float
    load_s: float
    others: float


def time_restart(size: int, *, num_blocks: int) -> Restarted:
    """Kill one process of a real `truestep run`, and return how long it takes until the next step is done."""
    with tempfile.TemporaryDirectory() as root:
        script = Path(root, "script.py")
        script.write_text(RESTARTED)
        command = [str(Path(sysconfig.get_path("scripts"), "truestep")), "run", "-n", str(size), str(script)]
        watch = Watch()
        done = subprocess.run(
            [*command, str(Path(root, "run")), str(num_blocks)],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        if done.returncode or "again" not in done.stdout:
            raise RuntimeError(f"the restart of {size} processes failed:\n{done.stdout}{done.stderr}")
        begun_s, imported_s, joined_s, stepped_s = map(float, done.stdout.split()[-4:])
        killed_s = float(Path(root, "run", "killed").read_text().split()[1])
    parts = begun_s - killed_s, imported_s - begun_s, joined_s - imported_s, stepped_s - joined_s
    return Restarted(stepped_s - killed_s, *parts, watch.others())


def time_order(num_samples: int) -> float:
    """Return seconds for each index of an order, in chunks as the loader asks for them."""
    order = Order(num_samples, seed=1, epoch=0)
    for start in range(0, 4 * CHUNK, CHUNK):  # chunks grow to their full size
        order.array(start, start + CHUNK)
    starts = range(4 * CHUNK, 12 * CHUNK, CHUNK)
    begun_s = time.process_time()
    for start in starts:
        order.array(start, start + CHUNK)
    return (time.process_time() - begun_s) / (CHUNK * len(starts))


def measure_order_memory(num_samples: int) -> int:
    """Return the most bytes in use while 100,000 samples are asked for."""
    tracemalloc.start()
    order = Order(num_samples, seed=1, epoch=0)
    for start in range(0, 10**5, 32):
        order.indices(start, start + 32)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def time_books(num_lanes: int) -> float:
    """Return seconds of one step's bookkeeping over all lanes, which each process does for itself."""
    exchange = Exchange(World(), num_lanes=num_lanes, device=torch.device("cpu"))
    word = Word(weights={0: 8}, losses={0: 1.0})
    exchange(word)
    begun_s = time.process_time()
    number = max(3, 30_000 // num_lanes)
    for _ in itertools.repeat(None, number):
        agreed = exchange(word)
        _drop({lane: agreed.weights[lane] for lane in range(num_lanes)})
    return (time.process_time() - begun_s) / number


def time_schedule(num_lanes: int) -> float:
    """Return seconds to make the schedule of a batch, once for each number of samples in it."""
    lanes, num_times = list(range(num_lanes)), 5
    gc.disable()
    begun_s = time.process_time()
    for _ in itertools.repeat(None, num_times):
        schedule(lanes, size=num_lanes, num_lanes=num_lanes)
    took_s = time.process_time() - begun_s
    gc.enable()
    return took_s / num_times


if __name__ == "__main__":
    sys.exit("This file is used by scale_model.py.")
