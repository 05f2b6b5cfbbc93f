"""Claim: SIGKILL of one or all processes at any moment, resumed on any others, does not change one bit.

Real gloo processes, a third of the kills inside a save of a random one; each start has another number of
processes, another layout and other workers. `truestep run` restarts by itself in some runs.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import group
import kill
from rich.console import Console
from rich.table import Table

MEMBERS = ("cnn", "transformer", "gan", "stream", "bf16")
SIZES, WORKERS, LAYOUTS = (1, 2, 3, 4, 5), (0, 1, 3), ("flat", "ddp", "fsdp")
NUM_STEPS, EVERY_STEPS, NUM_LANES = 24, 3, 8
LIMIT_S = 150.0
"""For this long a run that nobody kills may take before it counts as hanging."""
GRACE_S = 5.0
LAUNCHED = (("fsdp", 3), ("ddp", 3), ("flat", 2))


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How one start of a run is spread: nothing of it may matter."""

    size: int = 1
    layout: str = "flat"
    workers: int = 0

    def other(self, dice: random.Random) -> "Shape":
        """Return one of which everything is different."""
        return Shape(
            size=dice.choice([size for size in SIZES if size != self.size]),
            layout=dice.choice([layout for layout in LAYOUTS if layout != self.layout]),
            workers=dice.choice([count for count in WORKERS if count != self.workers]),
        )


@dataclass(frozen=True, kw_only=True)
class Aim:
    """One process, and the system call of its saves before (or, if negative, after) which it kills itself."""

    rank: int
    call: int


def train(name: str, folder: Path, *, shape: Shape, rank: int) -> None:
    """Train one member as one of the processes that are joined; leave the digests in a file."""
    import zoo

    plan = zoo.Plan(
        workers=shape.workers,
        num_steps=NUM_STEPS,
        every_steps=EVERY_STEPS,
        lanes=NUM_LANES,
        parallel=shape.layout,
    )
    digests = zoo.train(name, folder, plan=plan)
    (folder / f"digests-{rank}.json").write_text(json.dumps(digests))


def work(seat: group.Seat, name: str, folder: Path, shape: Shape, aim: Aim | None) -> None:
    """In every process of a group."""
    if aim is not None and aim.rank == seat.rank:
        kill.aim_inside_save(aim.call)
    seat.meet("meet")
    train(name, folder, shape=shape, rank=seat.rank)


class Trial:
    """One member of the zoo under fire."""

    def __init__(self, name: str, root: Path, dice: random.Random) -> None:
        self.name, self._root, self._dice = name, root, dice
        self.num_kills = self.num_in_save = self.num_of_all = self.num_finished = self.num_launched = 0
        self.problems: list[str] = []
        self.shapes: set[Shape] = set()
        self._shape = Shape()
        self._num_starts = 0

    def run(self, num_kills: int) -> None:
        """Make the reference, then kill."""
        self.reference()
        self.fire(num_kills)
        print(f"{self.name}: {self.num_kills} kills, {len(self.problems)} problems", file=sys.stderr)

    def reference(self) -> None:
        """Train on one process without a group, and on three: what all must equal, and how long it takes."""
        self.seconds: dict[int, float] = {}
        self.expected: dict[str, str] = {}
        for shape in (Shape(), Shape(size=3, layout="ddp")):
            self._shape = shape
            folder = self._root / f"{self.name}-reference{shape.size}"
            started_s = time.monotonic()
            self._attempt(folder, is_deadly=False)
            self.seconds[shape.size] = time.monotonic() - started_s
            if not self._has_finished(folder):
                raise SystemExit(f"{self.name} did not train without a kill: {self.problems}")
            self.expected = self.expected or self._digests(folder)[0]
            self._compare(folder)
        self.num_finished = 0
        shutil.rmtree(self._root / f"{self.name}-reference3")

    def fire(self, num_kills: int) -> None:
        """Kill until the number is reached; every run that gets to its end is compared."""
        folder = self._root / f"{self.name}-0"
        while self.num_kills < num_kills or not self._has_finished(folder):
            self._shape = self._shape.other(self._dice)
            self.shapes.add(self._shape)
            self._attempt(folder, is_deadly=self.num_kills < num_kills)
            if self._has_finished(folder):
                self._compare(folder)
                if self.num_kills < num_kills:
                    folder = self._root / f"{self.name}-{self.num_finished}"
            if len(self.problems) > 3:
                return

    def _attempt(self, folder: Path, *, is_deadly: bool) -> None:
        before = self._newest(folder)
        for path in folder.glob("digests-*.json"):
            path.unlink()
        aim = self._take_aim() if is_deadly and self.num_in_save * 3 <= self.num_kills else None
        place = self._root / f"{self.name}-group{self._num_starts}"
        self._num_starts += 1
        folder.mkdir(parents=True, exist_ok=True)
        shape = self._shape
        processes = group.Group(work, self.name, folder, shape, aim, size=shape.size, folder=place)
        try:
            if is_deadly and aim is None:
                self._kill(processes)
            elif (
                processes.wait_any(LIMIT_S)
                and aim is not None
                and processes.codes[aim.rank] == -signal.SIGKILL
            ):
                self.num_kills += 1
                self.num_in_save += 1
                processes.wait_all(self._dice.uniform(0.0, 1.0))
            else:
                self._see_finished(processes)
        finally:
            processes.end()
        after = self._newest(folder)
        if after < before:
            self.problems.append(f"snapshot lost: newest was step {before}, is {after} ({shape})")
        shutil.rmtree(place)

    def _take_aim(self) -> Aim:
        # Only where the model is sharded does any but the first process save, and those make few calls.
        rank = self._dice.randrange(self._shape.size) if self._shape.layout == "fsdp" else 0
        return Aim(rank=rank, call=self._dice.choice((-1, 1)) * self._dice.randint(1, 20 if rank else 60))

    def _kill(self, processes: group.Group) -> None:
        """Kill one process, or all, at a random moment; one's peers have a moment to notice."""
        size = self._shape.size
        if processes.wait_any(self._dice.uniform(0.05, self._estimate_s(size))):
            self._see_finished(processes)
            return
        of_all = size == 1 or self._dice.random() < 0.5
        victims = [*range(size)] if of_all else [self._dice.randrange(size)]
        processes.kill(victims)
        processes.wait_all(0.0 if of_all else self._dice.uniform(0.0, 3.0))
        processes.end()
        if any(processes.codes[rank] == -signal.SIGKILL for rank in victims):
            self.num_kills += 1
            self.num_of_all += of_all

    def _estimate_s(self, size: int) -> float:
        """By what one and three processes took."""
        return self.seconds[1] + (self.seconds[3] - self.seconds[1]) * (size - 1) / 2

    def _see_finished(self, processes: group.Group) -> None:
        """Nobody was killed: all must come to their end."""
        is_ended = processes.wait_all(GRACE_S if any(processes.codes) else LIMIT_S)
        if not is_ended:
            processes.show_stacks()
        if not is_ended or any(processes.codes):
            what = f"exit codes {processes.codes}" if is_ended else f"no end within {LIMIT_S:.0f} s"
            self.problems.append(f"{what} without a kill ({self._shape})")
            print(f"{self.name}, {self._shape}: {what}\n{processes.errors()}", file=sys.stderr)

    def _newest(self, folder: Path) -> int:
        """Read the newest snapshot in this one process, whoever wrote it."""
        try:
            return kill.newest_cursor(folder)
        except SystemExit as error:
            self.problems.append(f"{error} ({self._shape})")
            return -1

    def _has_finished(self, folder: Path) -> bool:
        return len(list(folder.glob("digests-*.json"))) == self._shape.size

    def _digests(self, folder: Path) -> list[dict[str, str]]:
        return [json.loads(path.read_text()) for path in sorted(folder.glob("digests-*.json"))]

    def _compare(self, folder: Path) -> None:
        self.num_finished += 1
        for rank, digests in enumerate(self._digests(folder)):
            for part in sorted({*self.expected, *digests}):
                if digests.get(part) != self.expected.get(part):
                    self.problems.append(f"{part} differs on rank {rank} ({self._shape})")

    def launch(self, layout: str, size: int) -> None:
        """Kill one process of a run under `truestep run`, which has to finish it by itself."""
        folder = self._root / f"{self.name}-launched{self.num_launched}-{layout}"
        folder.mkdir()
        self._shape = Shape(size=size, layout=layout, workers=1)
        command = [str(Path(sysconfig.get_path("scripts")) / "truestep"), "run", "-n", str(size), __file__]
        with (folder / "stderr.log").open("w") as log:
            arguments = ["--train", self.name, str(folder), layout]
            launcher = subprocess.Popen([*command, *arguments], stdout=log, stderr=log)
            try:
                is_killed = self._kill_launched(launcher, folder)
                code: Any = launcher.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                code = f"none within {LIMIT_S:.0f} s"
            finally:
                launcher.kill()  # its processes ask the kernel to end with it
                launcher.wait()
        told = (folder / "stderr.log").read_text(errors="replace")
        if code == 0 and is_killed and "was killed by SIGKILL; restarting" in told:
            self.num_launched += 1
            self._compare(folder)
        else:
            self.problems.append(f"truestep run -n {size} ended with exit code {code} ({layout})")
            print(told[-3000:], file=sys.stderr)

    def _kill_launched(self, launcher: "subprocess.Popen[bytes]", folder: Path) -> bool:
        """Wait for some snapshots, then kill; return whether that was before the end."""
        num_snapshots, deadline_s = self._dice.randint(1, 3), time.monotonic() + LIMIT_S
        seen: set[str] = set()
        while len(seen) < num_snapshots and launcher.poll() is None and time.monotonic() < deadline_s:
            seen |= {path.name for path in folder.glob("snapshots/step-*") if path.is_dir()}
            time.sleep(0.02)
        rank = self._dice.randrange(self._shape.size)
        path = folder / f"pid-0-{rank}"
        if len(seen) < num_snapshots or launcher.poll() is not None:
            return False
        os.kill(int(path.read_text()), signal.SIGKILL)
        return True


def train_launched(name: str, folder: Path, layout: str) -> None:
    """As the script of `truestep run`: torchrun's variables say which process this is."""
    rank, restart = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
    (folder / f"pid-{restart}-{rank}").write_text(str(os.getpid()))
    train(name, folder, shape=Shape(layout=layout, workers=1), rank=rank)


def show(trials: list[Trial], seconds: float) -> None:
    """Print the table."""
    table = Table(
        "member", "kills", "inside a save", "of all", "shapes", "finished", "truestep run", "digests"
    )
    for trial in trials:
        verdict = "[green]equal[/green]" if not trial.problems else f"[red]{'; '.join(trial.problems)}[/red]"
        table.add_row(trial.name, *map(str, _numbers(trial).values()), verdict)
    table.add_section()
    sums = [sum(numbers) for numbers in zip(*(_numbers(trial).values() for trial in trials), strict=True)]
    table.add_row("all", *map(str, sums), f"{seconds:.0f} s")
    Console(width=None if sys.stdout.isatty() else 130).print(table)


def _numbers(trial: Trial) -> dict[str, int]:
    return {
        "kills": trial.num_kills,
        "in_save": trial.num_in_save,
        "of_all": trial.num_of_all,
        "shapes": len(trial.shapes),
        "finished": trial.num_finished,
        "launched": trial.num_launched,
    }


def run_all(names: list[str], *, num_kills: int, num_launched: int, seed: int) -> list[Trial]:
    """Run two trials at a time, then the launched runs one by one."""
    group.prepare()
    quotas = [-(-num_kills // len(names))] * len(names)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root, ThreadPoolExecutor(2) as pool:
        trials = [Trial(name, Path(root), random.Random(f"{seed}-{name}")) for name in names]
        list(pool.map(Trial.run, trials, quotas))
        for number in range(num_launched):
            trials[number % len(trials)].launch(*LAUNCHED[number % len(LAUNCHED)])
    return trials


def main() -> int:
    """Run the claim."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--launched", type=int, default=3, help="how many runs under `truestep run`")
    parser.add_argument("--members", default=",".join(MEMBERS), help="comma-separated names")
    parser.add_argument("--seed", type=int, default=None, help="of the kills; default: a new one, printed")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--train", nargs=3, metavar=("MEMBER", "FOLDER", "LAYOUT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        name, folder, layout = arguments.train
        train_launched(name, Path(folder), layout)
        return 0
    names = arguments.members.split(",")
    seed = arguments.seed if arguments.seed is not None else random.randrange(2**32)
    started_s = time.monotonic()
    trials = run_all(names, num_kills=arguments.kills, num_launched=arguments.launched, seed=seed)
    seconds = time.monotonic() - started_s
    total, in_save = sum(t.num_kills for t in trials), sum(t.num_in_save for t in trials)
    launched = sum(t.num_launched for t in trials)
    holds = total >= arguments.kills and in_save * 3 >= total and launched == arguments.launched
    holds = holds and not any(t.problems for t in trials)
    if arguments.json:
        members = {t.name: {**_numbers(t), "problems": t.problems} for t in trials}
        counts = {"kills": total, "in_save": in_save, "launched": launched, "seed": seed, "seconds": seconds}
        print(json.dumps({"claim_holds": holds, **counts, "members": members}))
    else:
        show(trials, seconds)
        print(f"seed {seed}; claim holds: {holds}")
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
