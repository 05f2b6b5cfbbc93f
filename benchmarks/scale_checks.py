"""The checks of scale_model.py: terms fitted to some measurements, predictions compared with the others.

Owns which points are fitted and which are checked. Formulas and timing have files of their own.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import parallel_loops as loops
import scale_formulas as formulas
import scale_terms as terms
from measure import Row

from truestep.dist.reduce import cost

SIZES = (1, 2, 3, 4, 8)
LANES = 8
MB = 1 << 20
TALK, CHAT, LETTER, PARCEL = terms.RING, "sum of 64 B", "sum of 1 MB", "sum of 8 MB"
SUM_BYTES = {CHAT: 64, LETTER: MB, PARCEL: 8 * MB}
COMMUNICATION = {"width": 512, "num_blocks": 8}
COMPUTE = {"width": 256, "num_blocks": 4}
FITTED_LOOPS = {
    "communication": (COMMUNICATION, [(2, 4), (8, 4)]),
    "compute": (COMPUTE, [(2, 64), (8, 64), (8, 256)]),
}
"""Lanes and samples in each, on one process."""
CHECKED_LOOPS = {"communication": (LANES, 4), "compute": (LANES, 128)}
ALONE_LOOPS = {"communication": (5, 4), "compute": (LANES, 128)}
BESIDE_LOOPS = {"communication": (4, 4), "compute": (4, 64)}
"""Fitted too, on two processes."""
SNAPSHOT_BYTES = {"fitted": (8 * MB, 64 * MB), "checked": (24 * MB, 128 * MB)}
RESTARTS = {"fitted": [(1, 4), (1, 64), (2, 4), (8, 4)], "checked": [(3, 4), (4, 4), (2, 64), (4, 64)]}
"""Processes, and layers of 1 MB each."""
ORDERS = {
    "narrow": (10**6, 6 * 10**8),
    "wide": (15 * 10**9, 10**10),
    "checked": (3 * 10**6, 10**9, 10**11, 10**12),
}
"""Samples; words of 32 and of 64 bits are fitted apart."""
BOOKS = {"fitted": (2000, 5000), "checked": (3000, 10_000)}
SCHEDULES = (5000, 3000, 10_000)
"""Lanes and processes; the first is fitted."""
NUM_ROUNDS = 9


@dataclass(frozen=True, kw_only=True)
class Point:
    """A measurement that no term was fitted to, and what was predicted for it."""

    kind: str
    what: str
    size: int
    unit: str
    measured: float
    predicted: float
    others: float = 0.0
    """Cores that others used meanwhile, if that matters."""

    @property
    def off(self) -> float:
        return self.predicted / self.measured - 1.0

    @property
    def row(self) -> Row:
        return {
            "what": self.what,
            "processes": str(self.size),
            "measured": self.measured,
            "predicted": self.predicted,
            "unit": self.unit,
            "off by, %": 100 * self.off,
            "others, cores": self.others,
        }


@dataclass(frozen=True, kw_only=True)
class Books:
    """What grows with the number of lanes or processes on each of them."""

    lanes: formulas.Line
    """Seconds of a step's bookkeeping."""
    plan_s: float
    """Seconds of a schedule, for each process with its lane."""
    sockets: formulas.Line
    """Connections that a process holds."""
    store: formulas.Line
    """Those of the process in which the store lives."""


class Kept:
    """What is measured already, in a file, so that a busy hour is not lost: turns of all runs count."""

    def __init__(self, path: str | None) -> None:
        self._path = Path(path) if path else None
        self._found: dict[str, Any] = {}
        if self._path is not None and self._path.exists():
            self._found = json.loads(self._path.read_text())

    def get(self, name: str, measure: Callable[[], Any], *, is_enough: Callable[[Any], bool]) -> Any:
        """Return what is kept under a name if it is enough, else measure and add to it."""
        found = self._found.get(name)
        if found is None or not is_enough(found):
            found = _merge(found, json.loads(json.dumps(measure())))
            self._found[name] = found
            if self._path is not None:
                self._path.write_text(json.dumps(self._found))
        return found


def _merge(old: Any, new: Any) -> Any:
    if old is None:
        return new
    return {key: _merge(old.get(key), new[key]) for key in new} if isinstance(new, dict) else [*old, *new]


def name_loop(task: str, lanes: int, samples: int) -> str:
    return f"{task}, {lanes} lanes of {samples}"


def make_loop(task: str, lanes: int, samples: int) -> terms.Loop:
    return terms.Loop(**FITTED_LOOPS[task][0], num_lanes=lanes, num_samples=samples)


def contenders(size: int) -> dict[str, terms.What]:
    """Return what is timed on so many processes."""
    if size > 1:
        found: dict[str, terms.What] = {
            name: terms.Sum(num_bytes=num, num_lanes=LANES) for name, num in SUM_BYTES.items()
        }
        found[TALK] = terms.RING
        shapes = [*CHECKED_LOOPS.items(), *(BESIDE_LOOPS.items() if size == 2 else ())]
        return found | {name_loop(task, *shape): make_loop(task, *shape) for task, shape in shapes}
    found = {terms.ADD: terms.ADD, terms.PACK: terms.PACK}
    for task, (_, fitted) in FITTED_LOOPS.items():
        for shape in (*fitted, ALONE_LOOPS[task]):
            found[name_loop(task, *shape)] = make_loop(task, *shape)
    return found


def time_group(size: int, seconds: float, kept: Kept) -> dict[str, terms.Turn]:
    def measure() -> dict[str, list[terms.Turn]]:
        print(f"steps on {size}: {seconds:.0f} s or more", file=sys.stderr)
        with tempfile.TemporaryDirectory() as root:
            turns = loops.run_processes(terms.time_all, contenders(size), Path(root), seconds, size=size)
        found: dict[str, list[terms.Turn]] = turns[0]
        return found

    def read(found: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, terms.Turn]:
        return {name: terms.quietest([terms.Turn(*turn) for turn in turns]) for name, turns in found.items()}

    def is_quiet(found: Mapping[str, Sequence[Sequence[float]]]) -> bool:
        return all(turn.others <= terms.MAX_OTHERS for turn in read(found).values())

    return read(kept.get(f"steps on {size}", measure, is_enough=is_quiet))


def fit_machine(groups: Mapping[int, Mapping[str, terms.Turn]], cores: int) -> formulas.Machine:
    """Solve for the terms of crossing processes, one after the other."""
    add_s, pack_s = (groups[1][name].processor_s / terms.ADD_BYTES for name in (terms.ADD, terms.PACK))
    two = groups[2]
    message_s = two[CHAT].processor_s / (2 * 2)
    machine = formulas.Machine(
        cores=cores,
        message_s=message_s,
        ring_s=two[TALK].processor_s / (2 * 2),
        byte_s=statistics.geometric_mean(
            # Each of two sends all of it once, in two halves, and adds one half.
            (two[name].processor_s / 2 - 2 * message_s - SUM_BYTES[name] / 2 * add_s) / SUM_BYTES[name]
            for name in (LETTER, PARCEL)
        ),
        add_s=add_s,
        pack_s=pack_s,
        wait_s=max(0.0, two[CHAT].clock_s - two[CHAT].processor_s / min(2, cores)) / 2,
        message_switch=0.0,
        ring_power=0.0,
        byte_switch=0.0,
    )
    return fit_crowd(machine, groups[max(SIZES)])


def fit_crowd(machine: formulas.Machine, group: Mapping[str, terms.Turn]) -> formulas.Machine:
    """Solve for what sharing a core adds to messages and bytes, from sums over the most processes."""
    size = max(SIZES)
    sent, messages = cost(size=size, num_lanes=LANES, num_bytes=SUM_BYTES[PARCEL])
    per_message_s = group[CHAT].processor_s / size / messages
    added_s = SUM_BYTES[PARCEL] * (size - 1) / size * machine.add_s
    per_byte_s = (group[PARCEL].processor_s / size - messages * per_message_s - added_s) / sent
    per_talk_s = group[TALK].processor_s / size / (2 * (size - 1))
    return replace(
        machine,
        ring_power=math.log(per_talk_s / machine.ring_s) / math.log(size / 2),
        message_switch=(per_message_s / machine.message_s - 1.0) / machine.crowd(size),
        byte_switch=(per_byte_s / machine.byte_s - 1.0) / machine.crowd(size),
    )


def check_steps(groups: Mapping[int, Mapping[str, terms.Turn]], machine: formulas.Machine) -> Iterator[Point]:
    tasks = fit_tasks(groups, machine)
    for size, group in groups.items():
        for task, shape in (CHECKED_LOOPS if size > 1 else ALONE_LOOPS).items():
            lanes, samples = shape
            expected = formulas.step(size, machine, tasks[task], num_lanes=lanes, num_samples=samples)
            yield from _points(name_loop(task, *shape), size, group[name_loop(task, *shape)], expected)
        if size == 1:
            continue
        for name, num_bytes in SUM_BYTES.items():
            if size == 2 or (size == max(SIZES) and name != LETTER):
                continue  # these were fitted
            expected = formulas.tree_sum(size, machine, num_lanes=LANES, num_bytes=num_bytes)
            yield from _points(name, size, group[name], expected)
        if 2 < size < max(SIZES):
            yield from _points(TALK, size, group[TALK], formulas.ring(size, machine))


def fit_tasks(
    groups: Mapping[int, Mapping[str, terms.Turn]], machine: formulas.Machine
) -> dict[str, formulas.Task]:
    tasks = {}
    for task, (_, fitted) in FITTED_LOOPS.items():
        alone = formulas.fit_task(
            {shape: groups[1][name_loop(task, *shape)].processor_s for shape in fitted},
            num_bytes=make_loop(task, *fitted[0]).num_bytes,
            add_s=machine.add_s,
        )
        lanes, samples = BESIDE_LOOPS[task]
        found_s = groups[2][name_loop(task, lanes, samples)].processor_s
        tasks[task] = formulas.fit_beside(alone, machine, found_s, num_lanes=lanes, num_samples=samples)
    return tasks


def _points(what: str, size: int, turn: terms.Turn, expected: formulas.Cost) -> Iterator[Point]:
    pairs = {
        "ms by the clock": (turn.clock_s, expected.clock_s),
        "ms of processor time": (turn.processor_s, expected.processor_s),
    }
    for unit, (measured_s, predicted_s) in pairs.items():
        yield Point(
            kind="steps and sums",
            what=what,
            size=size,
            unit=unit,
            measured=1e3 * measured_s,
            predicted=1e3 * predicted_s,
            others=turn.others,
        )


def check_snapshots(kept: Kept) -> tuple[dict[str, formulas.Line], list[Point]]:
    sizes = [size for group in SNAPSHOT_BYTES.values() for size in group]

    def measure() -> dict[str, dict[str, list[Any]]]:
        print(f"snapshots: {NUM_ROUNDS} rounds", file=sys.stderr)
        found = terms.time_snapshots(sizes, num_rounds=NUM_ROUNDS)
        return {
            name: {str(size): [list(turn) for turn in turns] for size, turns in by.items()}
            for name, by in found.items()
        }

    def is_quiet(found: Any) -> bool:
        return all(
            terms.settle(turns)[1] <= terms.MAX_OTHERS for by in found.values() for turns in by.values()
        )

    found = kept.get("snapshots", measure, is_enough=is_quiet)
    lines, points = {}, []
    for name, by in found.items():
        settled = {int(size): terms.settle(turns) for size, turns in by.items()}
        low, high = SNAPSHOT_BYTES["fitted"]
        lines[name] = formulas.fit_line((low, settled[low][0]), (high, settled[high][0]))
        points += [
            Point(
                kind="snapshots and restarts",
                what=f"snapshot of {size // MB} MB, {name}",
                size=1,
                unit="ms by the clock",
                measured=1e3 * settled[size][0],
                predicted=1e3 * lines[name].at(size),
                others=settled[size][1],
            )
            for size in SNAPSHOT_BYTES["checked"]
        ]
    return lines, points


def time_restarts(kept: Kept, num_rounds: int) -> dict[tuple[int, int], terms.Restarted]:
    """Return what restarts took, by processes and layers: the median of the quieter half of the rounds."""

    def measure(size: int, num_blocks: int) -> dict[str, list[Any]]:
        print(f"restarts of {size}, {num_blocks} MB: {num_rounds} rounds", file=sys.stderr)
        return {"turns": [terms.time_restart(size, num_blocks=num_blocks) for _ in range(num_rounds)]}

    found = {}
    for size, num_blocks in (*RESTARTS["fitted"], *RESTARTS["checked"]):
        turns = kept.get(
            f"restarts of {size}, {num_blocks} MB",
            partial(measure, size, num_blocks),
            is_enough=lambda found: min(turn[-1] for turn in found["turns"]) <= terms.MAX_OTHERS,
        )["turns"]
        quiet = sorted(turns, key=lambda turn: turn[-1])[: max(1, len(turns) // 2)]
        found[size, num_blocks] = terms.Restarted(*map(statistics.median, zip(*quiet, strict=True)))
    return found


def check_restarts(
    machine: formulas.Machine, found: Mapping[tuple[int, int], terms.Restarted]
) -> tuple[formulas.Restart, list[Point]]:
    fitted = {(size, blocks * MB): found[size, blocks].total_s for size, blocks in RESTARTS["fitted"]}
    restart = formulas.fit_restart(fitted, machine)
    points = [
        Point(
            kind="snapshots and restarts",
            what=f"restart, {blocks} MB",
            size=size,
            unit="s by the clock",
            measured=found[size, blocks].total_s,
            predicted=restart.at(size, machine, num_bytes=blocks * MB),
            others=found[size, blocks].others,
        )
        for size, blocks in RESTARTS["checked"]
    ]
    return restart, points


def measure_order() -> dict[str, Any]:
    numbers = [number for group in ORDERS.values() for number in group]
    found: dict[str, list[float]] = {str(number): [] for number in numbers}
    for _ in range(NUM_ROUNDS):
        for name, seconds in found.items():
            seconds.append(terms.time_order(int(name)))
    memory = {str(number): [terms.measure_order_memory(number)] for number in numbers}
    return {"seconds": found, "bytes": memory}


def check_order(kept: Kept) -> tuple[formulas.Order, list[Point]]:
    kinds = kept.get("order", measure_order, is_enough=bool)
    seconds, memory = (
        {int(number): terms.low(values) for number, values in kinds[kind].items()}
        for kind in ("seconds", "bytes")
    )
    lines = {
        kind: formulas.fit_line(*((formulas.walk_factor(num) - 1, seconds[num]) for num in ORDERS[kind]))
        for kind in ("narrow", "wide")
    }
    order = formulas.Order(**lines, num_bytes=memory[ORDERS["narrow"][0]])
    points = []
    for number in ORDERS["checked"]:
        common = {"kind": "order and books", "what": f"order of {number:.0e} samples", "size": 1}
        each, kilo = {"unit": "ns of processor time"}, {"unit": "kB of memory"}
        points += [
            Point(**common, **each, measured=1e9 * seconds[number], predicted=1e9 * order.index_s(number)),
            Point(**common, **kilo, measured=memory[number] / 1e3, predicted=order.num_bytes / 1e3),
        ]
    return order, points


def measure_books() -> dict[str, Any]:
    lanes = [number for group in BOOKS.values() for number in group]
    books: dict[str, list[float]] = {str(number): [] for number in lanes}
    plans: dict[str, list[float]] = {str(number): [] for number in SCHEDULES}
    for _ in range(5):
        for name, found in books.items():
            found.append(terms.time_books(int(name)))
        for name, found in plans.items():
            found.append(terms.time_schedule(int(name)))
    sizes = [size for size in SIZES if size > 1]
    links = {str(size): loops.run_processes(terms.count_sockets, size=size) for size in sizes}
    store, sockets = ({size: [found[which]] for size, found in links.items()} for which in (0, -1))
    return {"books": books, "schedule": plans, "sockets": sockets, "store": store}


def check_books(kept: Kept) -> tuple[Books, list[Point]]:
    """Check what every process does for all lanes, or holds for all processes: it grows with the cluster."""
    kinds = kept.get("books", measure_books, is_enough=bool)
    books, plans, sockets, store = (
        {int(number): terms.low(values) for number, values in kinds[kind].items()}
        for kind in ("books", "schedule", "sockets", "store")
    )
    first, *larger = SCHEDULES
    fitted = Books(
        lanes=formulas.fit_line(*((number, books[number]) for number in BOOKS["fitted"])),
        plan_s=plans[first] / first,
        sockets=formulas.fit_line(*((size, sockets[size]) for size in (2, 4))),
        store=formulas.fit_line(*((size, store[size]) for size in (2, 4))),
    )
    predicted = [
        *((f"books of {num:,} lanes", 1, books[num], fitted.lanes.at(num)) for num in BOOKS["checked"]),
        *((f"schedule of {num:,} processes", 1, plans[num], fitted.plan_s * num) for num in larger),
        *(("connections", size, sockets[size], fitted.sockets.at(size)) for size in (3, 8)),
        *(("connections with the store", size, store[size], fitted.store.at(size)) for size in (3, 8)),
    ]
    points = []
    for what, size, measured, expected in predicted:
        unit, factor = ("each", 1.0) if size > 1 else ("ms of processor time", 1e3)
        numbers = {"measured": factor * measured, "predicted": factor * expected}
        points.append(Point(kind="order and books", what=what, size=size, unit=unit, **numbers))
    return fitted, points
