"""Claim: SIGKILL at any moment, resumed with another number of workers, does not change one bit.

Kills real processes, a third of them between two system calls of a save, over the whole zoo.
Every run's final digests must equal those of a run that nobody killed, and no snapshot may be lost.
"""

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

NUM_STEPS, EVERY_STEPS = 40, 4
WORKERS = (0, 1, 3)
_PROCESSES = threading.Lock()
"""Starting a process polls every other one, and two threads must not read one exit code."""

CALLS = ("mkdir", "open", "write", "fsync", "rename", "replace", "unlink", "rmdir", "close")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def aim_inside_save(call: int) -> None:
    """Make this process kill itself before or after one of the system calls that saves make."""
    from truestep.run.checkpoint import Store

    saving = threading.local()
    left = [abs(call)]
    save = Store.save

    def save_watched(store: Store, snapshot: Any) -> Path:
        saving.is_on = True
        try:
            return save(store, snapshot)
        finally:
            saving.is_on = False

    def deadly(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            if not getattr(saving, "is_on", False):
                return function(*args, **kwargs)
            left[0] -= 1
            if left[0] == 0 and call > 0:
                _die()
            result = function(*args, **kwargs)
            if left[0] == 0:
                _die()
            return result

        return called

    Store.save = save_watched  # type: ignore[method-assign]
    for name in CALLS:
        setattr(os, name, deadly(getattr(os, name)))


def child(name: str, folder: str, workers: int, call: int | None) -> None:
    """Train one member of the zoo in a process of its own; leave its digests in a file."""
    import zoo

    multiprocessing.set_start_method("fork", force=True)  # of loader workers, as in a script started by hand
    # Orphaned loader workers complain when their parent is killed; what matters is shown if a child fails.
    os.dup2(os.open(Path(folder, "stderr.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    if call is not None:
        aim_inside_save(call)
    plan = zoo.Plan(workers=workers, num_steps=NUM_STEPS, every_steps=EVERY_STEPS)
    digests = zoo.train(name, Path(folder), plan=plan)
    Path(folder, "digests.json").write_text(json.dumps(digests))


def _join(process: Any, *, timeout_s: float | None = None) -> bool:
    """Wait for a process's end; return whether it came."""
    if not wait([process.sentinel], timeout_s):
        return False
    with _PROCESSES:
        process.join()
    return True


class Trial:
    """One member of the zoo under fire."""

    def __init__(self, name: str, root: Path, dice: random.Random) -> None:
        self.name, self._root, self._dice = name, root, dice
        self._context = multiprocessing.get_context("forkserver")
        self.num_kills = self.num_in_save = self.num_finished = 0
        self.problems: list[str] = []
        self._workers = 0

    def run(self, num_kills: int) -> None:
        """Make the reference, then kill."""
        self.reference()
        self.fire(num_kills)
        print(f"{self.name}: {self.num_kills} kills, {len(self.problems)} problems", file=sys.stderr)

    def reference(self) -> None:
        """Train twice without a kill; this is what every other run must equal, and how long it takes."""
        for number in range(2):
            folder = self._root / f"{self.name}-reference{number}"
            started_s = time.monotonic()
            _join(self._start(folder, call=None))
            self.seconds = time.monotonic() - started_s
            digests = json.loads((folder / "digests.json").read_text())
            if number and digests != self.expected:
                self.problems.append("two runs that nobody killed differ")
            self.expected = digests

    def _start(self, folder: Path, *, call: int | None) -> Any:
        folder.mkdir(parents=True, exist_ok=True)
        process = self._context.Process(
            target=child, args=(self.name, str(folder), WORKERS[self._workers], call)
        )
        with _PROCESSES:
            process.start()
        return process

    def fire(self, num_kills: int) -> None:
        """Kill until the number is reached; every run that gets to its end is compared."""
        folder = self._root / f"{self.name}-0"
        while self.num_kills < num_kills or not (folder / "digests.json").exists():
            is_last = self.num_kills >= num_kills
            self._workers = (self._workers + 1) % len(WORKERS)
            self._attempt(folder, is_deadly=not is_last)
            if (folder / "digests.json").exists():
                self._compare(folder)
                if self.num_kills < num_kills:
                    folder = self._root / f"{self.name}-{self.num_finished}"

    def _attempt(self, folder: Path, *, is_deadly: bool) -> None:
        before = newest_cursor(folder)
        in_save = is_deadly and self.num_in_save * 3 <= self.num_kills
        call = self._dice.choice((-1, 1)) * self._dice.randint(1, 60) if in_save else None
        process = self._start(folder, call=call)
        alive_s = self._dice.uniform(0.05, self.seconds) if is_deadly and not in_save else None
        if not _join(process, timeout_s=alive_s):
            os.kill(process.pid, signal.SIGKILL)
            _join(process)
        if process.exitcode == -signal.SIGKILL:
            self.num_kills += 1
            self.num_in_save += in_save
        elif process.exitcode != 0:
            self.problems.append(f"exit code {process.exitcode} with {WORKERS[self._workers]} workers")
            print((folder / "stderr.log").read_text()[-3000:], file=sys.stderr)
            shutil.rmtree(folder)
            return
        after = newest_cursor(folder)
        if after < before:
            self.problems.append(f"snapshot lost: newest was step {before}, is {after}")

    def _compare(self, folder: Path) -> None:
        digests = json.loads((folder / "digests.json").read_text())
        self.num_finished += 1
        for part, expected in self.expected.items():
            if digests.get(part) != expected:
                self.problems.append(f"{part} differs from the run that nobody killed")


def newest_cursor(folder: Path) -> int:
    """Read the newest snapshot as a resuming process would; a damaged one is a failure."""
    from truestep.run.checkpoint import Store

    if not (folder / "run.json").exists():
        return -1
    store = Store(folder / "snapshots", run_id=json.loads((folder / "run.json").read_text())["id"])
    snapshot, damages = store.load_newest()
    if damages:
        raise SystemExit(f"half-written snapshot published: {damages[0].reason}")
    return snapshot.cursor if snapshot is not None else -1


def show(trials: list[Trial], seconds: float) -> None:
    """Print the table."""
    table = Table("member", "kills", "inside a save", "runs finished", "digests")
    for trial in trials:
        verdict = "[green]equal[/green]" if not trial.problems else f"[red]{'; '.join(trial.problems)}[/red]"
        table.add_row(
            trial.name, str(trial.num_kills), str(trial.num_in_save), str(trial.num_finished), verdict
        )
    total, in_save = sum(t.num_kills for t in trials), sum(t.num_in_save for t in trials)
    finished = sum(t.num_finished for t in trials)
    table.add_section()
    table.add_row("all", str(total), str(in_save), str(finished), f"{seconds:.0f} s")
    Console().print(table)


def main() -> int:
    """Run the claim."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--members", default="", help="comma-separated names; default: the whole zoo")
    parser.add_argument(
        "--seed", type=int, default=None, help="of the kill times; default: a new one, printed"
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    import zoo

    names = arguments.members.split(",") if arguments.members else list(zoo.ZOO)
    seed = arguments.seed if arguments.seed is not None else random.randrange(2**32)
    # The server that all children are forked from imports torch once; it finds the zoo by this variable only.
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    multiprocessing.get_context("forkserver").set_forkserver_preload(
        ["zoo", "truestep.run.train", "torch._dynamo"]
    )
    started_s = time.monotonic()
    quotas = [-(-arguments.kills // len(names))] * len(names)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root, ThreadPoolExecutor(2) as pool:
        trials = [Trial(name, Path(root), random.Random(f"{seed}-{name}")) for name in names]
        list(pool.map(Trial.run, trials, quotas))
    seconds = time.monotonic() - started_s
    total, in_save = sum(t.num_kills for t in trials), sum(t.num_in_save for t in trials)
    holds = total >= arguments.kills and in_save * 3 >= total and not any(t.problems for t in trials)
    if arguments.json:
        members = {
            t.name: {
                "kills": t.num_kills,
                "in_save": t.num_in_save,
                "finished": t.num_finished,
                "problems": t.problems,
            }
            for t in trials
        }
        print(
            json.dumps(
                {"claim_holds": holds, "kills": total, "in_save": in_save, "seed": seed, "members": members}
            )
        )
    else:
        show(trials, seconds)
        print(f"seed {seed}; claim holds: {holds}")
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
