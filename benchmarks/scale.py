"""Claim: any number of processes, of workers and any layout train the same weights, to the bit.

Real gloo processes, over the whole zoo, across an epoch, with clipping at work. One digest per member of
weights, buffers, optimizer state, EMA and metric; losses and norms in the record are equal too.
"""

import argparse
import itertools
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import group
import measure

SIZES, WORKERS, LAYOUTS = (1, 2, 3, 4, 5, 8), (0, 1, 3), ("flat", "ddp", "fsdp")
SHORT_SIZES = (1, 2, 3, 4)
NUM_LANES = 8
EVERY_STEPS = 3
LENGTHS = {32: 8, 147: 5}
"""Batch size: steps. Of 150 samples an epoch's last batch has 22, so that all lanes are filled, or 3: then
most lanes are empty, some processes have nothing to do, and that already in the second step."""
MAX_CASES = 30
"""Of one group."""
WHOLE, SPARSE = LENGTHS
SILENCE_S = 120.0
"""For this long a group may take for one case before it counts as hanging."""
GRACE_S = 3.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training: what it trains and what must not matter."""

    member: str
    size: int = 1
    workers: int = 0
    layout: str = "flat"
    batch_size: int = WHOLE

    def __str__(self) -> str:
        return (
            f"{self.member} (batch {self.batch_size}) on {self.size} processes, {self.workers} workers, "
            f"{self.layout}"
        )

    @property
    def reference(self) -> "Case":
        """One process without any group, reading by itself."""
        return Case(member=self.member, batch_size=self.batch_size)


@dataclass(kw_only=True)
class Outcome:
    """What came of a case: every process's digests, the record's numbers by step, or how it failed."""

    digests: dict[int, dict[str, str]] = field(default_factory=dict)
    steps: dict[int, dict[str, str]] = field(default_factory=dict)
    failure: str = ""


def train_all(seat: group.Seat, cases: Sequence[Case]) -> None:
    """In every process of a group: train one case after the other, and tell the digests of each."""
    import zoo

    for index, case in enumerate(cases):
        plan = zoo.Plan(
            workers=case.workers,
            num_steps=LENGTHS[case.batch_size],
            every_steps=EVERY_STEPS,
            lanes=NUM_LANES,
            batch_size=case.batch_size,
            parallel=case.layout,
        )
        seat.meet(f"meet-{index}")
        digests = zoo.train(case.member, seat.folder / str(index), plan=plan)
        seat.part()
        seat.tell((index, digests))


def read_steps(folder: Path) -> dict[int, dict[str, str]]:
    """Return losses and norms of a record by step, as exact text."""
    from truestep import record

    return {
        step: {
            name: float(value).hex()
            for name, value in values.items()
            if name not in ("end_us", "memory_bytes")
        }
        for step, values in record.read_steps(folder / "record.jsonl").items()
    }


def run_cases(cases: Sequence[Case], folder: Path) -> dict[Case, Outcome]:
    """Train cases of one size in one group; after one that fails, the rest in a new one."""
    outcomes: dict[Case, Outcome] = {}
    left = list(cases)
    for number in itertools.count():
        if not left:
            return outcomes
        place = folder / str(number)
        processes = group.Group(train_all, left, size=left[0].size, folder=place)
        try:
            found = _collect(processes, left, place)
        finally:
            processes.end()
        outcomes |= found
        left = left[len(found) :]
        shutil.rmtree(place)
    return outcomes


def _collect(processes: group.Group, cases: Sequence[Case], folder: Path) -> dict[Case, Outcome]:
    """Return the outcomes of cases up to the first that fails, or of all."""
    outcomes: dict[Case, Outcome] = {}
    digests: list[dict[int, dict[str, str]]] = [{} for _ in cases]
    for rank, (index, found) in processes.messages(SILENCE_S):
        digests[index][rank] = found
        if len(digests[index]) == cases[index].size:
            place = folder / str(index)
            outcomes[cases[index]] = Outcome(digests=digests[index], steps=read_steps(place))
            shutil.rmtree(place)
    if len(outcomes) < len(cases):
        is_hung = all(code in (None, 0) for code in processes.codes)
        how = f"no answer within {SILENCE_S:.0f} s" if is_hung else "a process failed"
        if is_hung:
            processes.show_stacks()
        else:
            processes.wait_all(GRACE_S)  # the first to end is not always the first to fail
        outcomes[cases[len(outcomes)]] = Outcome(failure=f"{how}:\n{processes.errors()}")
    return outcomes


def differences(found: Outcome, expected: Outcome) -> list[str]:
    """Return which parts differ, on which processes, and the first step whose loss or norm does."""
    if found.failure:
        return [found.failure]
    differing: dict[str, list[int]] = {}
    for rank, digests in sorted(found.digests.items()):
        (reference,) = expected.digests.values()
        for part in sorted({*reference, *digests}):
            if reference.get(part) != digests.get(part):
                differing.setdefault(part, []).append(rank)
    told = [f"{part} differs on ranks {ranks}" for part, ranks in differing.items()]
    for step in sorted({*found.steps, *expected.steps}):
        ours, theirs = found.steps.get(step, {}), expected.steps.get(step, {})
        names = [name for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)]
        if names:
            return [*told, f"the record's {' and '.join(names)} from step {step} on"]
    return told


def full_product(
    members: Iterable[str], sizes: Iterable[int], workers: Iterable[int], layouts: Iterable[str]
) -> list[Case]:
    """Every combination; with most lanes empty the number of workers goes round instead."""
    workers, layouts, members = tuple(workers), tuple(layouts), tuple(members)
    cases = [
        Case(member=member, size=size, workers=count, layout=layout)
        for size, count, member, layout in itertools.product(sizes, workers, members, layouts)
    ]
    for size in sizes:
        turn = itertools.cycle(workers)
        cases += [
            Case(member=member, size=size, workers=next(turn), layout=layout, batch_size=SPARSE)
            for layout, member in itertools.product(layouts, members)
        ]
    return cases


def every_pair(
    members: Sequence[str], sizes: Sequence[int], workers: Sequence[int], layouts: Sequence[str]
) -> list[Case]:
    """Few combinations in which each pair of member, size, workers and layout occurs."""
    cases = []
    for turn, (number, member) in itertools.product(range(2), enumerate(members)):
        for place, size in enumerate(sizes):
            layout = layouts[(number + place + turn) % len(layouts)]
            count = workers[(number // len(layouts) + 2 * place + turn) % len(workers)]
            batch_size = (WHOLE, SPARSE)[turn]
            cases.append(Case(member=member, size=size, workers=count, layout=layout, batch_size=batch_size))
    return cases


def cut_into_groups(cases: Iterable[Case]) -> list[list[Case]]:
    """Put cases of one size together, not too many; the largest groups first, so that none is left alone."""
    by_size: dict[int, list[Case]] = {}
    for case in cases:
        by_size.setdefault(case.size, []).append(case)
    return [
        of_size[start : start + MAX_CASES]
        for _, of_size in sorted(by_size.items(), reverse=True)
        for start in range(0, len(of_size), MAX_CASES)
    ]


def run_all(cases: Sequence[Case], root: Path) -> dict[Case, Outcome]:
    """Train the references and all cases, two groups of processes at a time."""
    groups = cut_into_groups(dict.fromkeys([*(case.reference for case in cases), *cases]))

    def run_group(number: int) -> dict[Case, Outcome]:
        started_s = time.monotonic()
        found = run_cases(groups[number], root / str(number))
        seconds = time.monotonic() - started_s
        size = groups[number][0].size
        print(f"{size} processes: {len(found)} cases in {seconds:.0f} s", file=sys.stderr)
        return found

    outcomes: dict[Case, Outcome] = {}
    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(run_group, range(len(groups))):
            outcomes |= found
    return outcomes


def summarise(member: str, cases: Sequence[Case], outcomes: dict[Case, Outcome]) -> measure.Row:
    """Return a member's row of the table, and tell every difference in full."""
    import zoo

    clip_norm = zoo.ZOO[member]().clip_norm
    mine = [case for case in cases if case.member == member]
    distinct: dict[int, set[str]] = {batch_size: set() for batch_size in LENGTHS}
    num_differing = 0
    for case in mine:
        outcome = outcomes[case]
        distinct[case.batch_size] |= {str(sorted(found.items())) for found in outcome.digests.values()}
        problems = differences(outcome, outcomes[case.reference])
        num_differing += bool(problems)
        if problems:
            print(f"{case}: {'; '.join(problems)}", file=sys.stderr)
    norms = [
        [float.fromhex(step["grad_norm"]) for step in outcomes[case].steps.values()]
        for case in {case.reference for case in mine}
    ]
    num_clipped = min(sum(norm > clip_norm for norm in of_one) for of_one in norms)
    row: dict[str, float | str | None] = {"member": member, "combinations": len(mine)}
    for batch_size, found in distinct.items():
        row[f"digests, batch {batch_size}"] = len(found) or None
    row |= {"steps clipped": num_clipped, "differing": num_differing}
    row["processes' results"] = sum(len(outcomes[case].digests) for case in mine)
    return row


def main() -> int:
    """Run the claim."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="numbers of processes")
    parser.add_argument("--workers", default=",".join(map(str, WORKERS)))
    parser.add_argument("--layouts", default=",".join(LAYOUTS))
    parser.add_argument("--members", default="", help="comma-separated names; default: the whole zoo")
    parser.add_argument("--short", action="store_true", help="each pair of values instead of their product")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    import zoo

    members = arguments.members.split(",") if arguments.members else list(zoo.ZOO)
    sizes, workers = (
        [int(item) for item in text.split(",")] for text in (arguments.sizes, arguments.workers)
    )
    layouts = arguments.layouts.split(",")
    if arguments.short:
        sizes = [size for size in sizes if size in SHORT_SIZES]
    choose = every_pair if arguments.short else full_product
    cases = choose(members, sizes, workers, layouts)
    group.prepare()
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:
        outcomes = run_all(cases, Path(root))
    seconds = time.monotonic() - started_s
    rows = [summarise(member, cases, outcomes) for member in members]
    sheet = measure.Sheet(
        title=f"{len(cases)} combinations in {seconds:.0f} s",
        rows=rows,
        note=f"{NUM_LANES} lanes; processes {sizes}, workers {workers}, layouts {layouts}",
        num_digits=0,
    )
    claims = [
        measure.fact("one digest per member and batch size", all(not row["differing"] for row in rows)),
        measure.fact("clipping was at work for every member", all(row["steps clipped"] for row in rows)),
    ]
    return measure.report("scale", sheets=[sheet], claims=claims, as_json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
