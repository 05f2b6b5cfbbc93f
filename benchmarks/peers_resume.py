"""Claim: killed twice and resumed, truestep consumes the same data and ends in the same weights.

And who else? Each tool trains the same small model (peers_loops.py) in real processes, is killed by SIGKILL
at two steps and resumed by its documented way, with as many loader workers as before or with more. What every
step consumed and the final weights are compared with the tool's own run that nobody killed. Claimed are
truestep's rows, and those "as repaired" by the lines that `truestep verify --kill` prints; the others are
reported as measured.
Exit code: 0 the claim holds, 1 it does not, 2 truestep was left out by --only.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import logging
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import peers_loops as loops
import torch
from measure import Claim, Row, Sheet, fact, report
from rich.markup import escape

import truestep as ts

KILLS = (25, 55)
MAX_S = 120
"""Of one process: one that hangs ends itself, and so does one whose benchmark was interrupted."""
MAX_DYING_S = 5.0
PACKAGES = ("torch", "torchdata", "lightning", "accelerate", "transformers", "numpy", "truestep")
QUICK = ("truestep", "torchdata")
COLUMNS = ("order", "data", "weights")
_PROCESSES = threading.Lock()
"""Starting a process polls every other one, and two threads must not read one exit code."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """How many workers the loader has before the first kill, and after it."""

    title: str
    before: int
    after: int


SCENARIOS = (
    Scenario(title="0 workers", before=0, after=0),
    Scenario(title="2 workers", before=2, after=2),
    Scenario(title="2 workers, 3 from the first resume on", before=2, after=3),
)


def quieten() -> None:
    """Mute the frameworks' advice; errors stay."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "lightning.fabric", "accelerate", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)


def child(name: str, folder: str, workers: int, stop_at: int | None, reporter: Connection) -> None:
    """Train one contender in a process of its own; leave its tape, its log and its final digest in files."""
    os.setsid()  # a group of its own: the kill shall hit loader workers too, as the end of a machine does
    signal.alarm(MAX_S)
    log = os.open(Path(folder, "log.txt"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    quieten()
    multiprocessing.set_start_method("fork", force=True)  # of loader workers, as in a script started by hand
    torch.set_num_threads(1)
    tape = loops.Tape(Path(folder, "tape.jsonl"), stop_at=stop_at, report=reporter)
    place = Path(folder, "checkpoints")
    place.mkdir(exist_ok=True)
    model = loops.CONTENDERS[name].train(loops.Desk(folder=place, workers=workers, tape=tape))
    Path(folder, "weights.txt").write_text(ts.digest_state(model.state_dict()))


@dataclass(kw_only=True)
class Outcome:
    """What a run left behind: what each step consumed at last, where each process began, the weights."""

    steps: dict[int, dict[str, Any]] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)
    weights: str | None = None
    error: str | None = None

    def first_difference(self, other: Outcome, column: str) -> int | None:
        """Return the first step that consumed something else, or that one of the two never reached."""
        for step in sorted({*self.steps, *other.steps}):
            mine, theirs = self.steps.get(step), other.steps.get(step)
            if mine is None or theirs is None or mine[column] != theirs[column]:
                return step
        return None


def read_outcome(folder: Path, error: str | None) -> Outcome:
    outcome = Outcome(error=error)
    is_new = False
    tape = folder / "tape.jsonl"
    for line in tape.read_text().splitlines() if tape.exists() else ():
        entry = json.loads(line)
        if "start" in entry:
            is_new = True
            continue
        if is_new:
            outcome.starts.append(entry["step"])
            is_new = False
        outcome.steps[entry["step"]] = entry
    weights = folder / "weights.txt"
    outcome.weights = weights.read_text() if weights.exists() else None
    return outcome


def list_group(group: int) -> list[int]:
    """The processes of a group that are alive (not those that only wait for their exit code to be read)."""
    members = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _parent, its_group = path.read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(its_group) == group and state != "Z":
            members.append(int(path.parent.name))
    return members


def count_survivors(group: int) -> int:
    """Count the processes of a group that outlive a time in which all should have gone, and end them."""
    until = time.monotonic() + MAX_DYING_S
    while (left := list_group(group)) and time.monotonic() < until:
        time.sleep(0.02)
    for process in left:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return len(left)


class Trial:
    """One contender in all scenarios."""

    def __init__(self, name: str, root: Path) -> None:
        self.name, self._root = name, root
        self._context = multiprocessing.get_context("forkserver")
        self.num_kills = self.num_orphans = 0
        self.rows: dict[str, dict[str, str]] = {}
        self.errors: list[str] = []
        self._references: dict[int, tuple[Outcome, Outcome]] = {}

    def run(self) -> None:
        begun = time.monotonic()
        for number, scenario in enumerate(SCENARIOS):
            if scenario.before not in self._references:
                self._references[scenario.before] = (
                    self._train(f"reference-{scenario.before}", scenario.before),
                    self._train(f"again-{scenario.before}", scenario.before),
                )
            killed = self._train(f"killed-{number}", scenario.before, after=scenario.after, kills=KILLS)
            reference, again = self._references[scenario.before]
            self.rows[scenario.title] = judge(reference, again=again, killed=killed)
            for outcome in (reference, again, killed):
                if outcome.error is not None and outcome.error not in self.errors:
                    self.errors.append(outcome.error)
        print(f"{self.name}: {self.num_kills} kills, {time.monotonic() - begun:.0f} s", file=sys.stderr)

    def _train(
        self, folder_name: str, workers: int, *, after: int | None = None, kills: Sequence[int] = ()
    ) -> Outcome:
        """Train from the first step to the last, through the kills."""
        folder = self._root / self.name / folder_name
        folder.mkdir(parents=True)
        for stop_at in (*kills, None):
            error = self._attempt(folder, workers, stop_at)
            if error is not None:
                return read_outcome(folder, error)
            workers = workers if after is None else after
        return read_outcome(folder, None)

    def _attempt(self, folder: Path, workers: int, stop_at: int | None) -> str | None:
        """Start a process; kill it and its workers once it reports the step. Returns what went wrong."""
        receiver, reporter = multiprocessing.Pipe(duplex=False)
        process = self._context.Process(
            target=child, args=(self.name, str(folder), workers, stop_at, reporter)
        )
        with _PROCESSES:
            process.start()
        reporter.close()
        assert process.pid is not None
        wait([receiver, process.sentinel])
        has_reported = stop_at is not None and receiver.poll() and _receive(receiver) == stop_at
        if has_reported:
            os.killpg(process.pid, signal.SIGKILL)
        wait([process.sentinel])
        with _PROCESSES:
            process.join()
        receiver.close()
        self.num_orphans += count_survivors(process.pid)
        if has_reported:
            self.num_kills += 1
            return None
        if process.exitcode != 0:
            return find_error((folder / "log.txt").read_text(), exit_code=process.exitcode)
        return None if stop_at is None else f"the process ended before step {stop_at}"


def _receive(receiver: Connection) -> int | None:
    try:
        return int(receiver.recv())
    except EOFError:  # the process has ended without a report
        return None


def find_error(log: str, *, exit_code: int | None) -> str:
    """Return the first exception that a log shows: later ones come of it. Without a message, where it was."""
    found = re.search(r"^(?:\w+\.)*([A-Z]\w*)(: .*)?$", log[max(0, log.find("Traceback")) :], re.MULTILINE)
    if found is None:
        return f"exit code {exit_code}"
    name, message = found.groups()
    if message:
        return f"{name}{message}"
    before = log[: log.find(found.group())]
    frames = re.findall(r'^ +File ".*?([^/"]+)", line (\d+), in .*\n +(.*)$', before, re.MULTILINE)
    return f"{name}: " + "{}:{}: {}".format(*frames[-1]) if frames else name


def judge(reference: Outcome, *, again: Outcome, killed: Outcome) -> dict[str, str]:
    """Fill a row: does an undisturbed run repeat itself, where was resumed, is what followed the same."""
    row = {"repeats": _repeats(reference, again), "resumed at": "", **dict.fromkeys(COLUMNS, "")}
    if reference.error is not None:
        return row
    row["resumed at"] = ", ".join(map(str, killed.starts[1:]))
    if killed.error is not None:
        row["order"] = killed.error.split(":")[0]
        return row
    for column in ("order", "data"):
        step = reference.first_difference(killed, column)
        row[column] = "same" if step is None else f"differ from {step}"
    row["weights"] = "same" if reference.weights == killed.weights else "differ"
    return row


def _repeats(reference: Outcome, again: Outcome) -> str:
    for outcome in (reference, again):
        if outcome.error is not None:
            return outcome.error.split(":")[0]
    if list(reference.steps) != list(range(loops.NUM_STEPS)):
        return f"{len(reference.steps)} steps of {loops.NUM_STEPS}"
    is_equal = reference.steps == again.steps and reference.weights == again.weights
    return "same" if is_equal else "differ"


def is_green(trial: Trial, scenario: Scenario) -> bool:
    """Whether a row is the same in every column. A run that began again at step 0 has not been resumed."""
    row = trial.rows[scenario.title]
    resumed = [int(step) for step in row["resumed at"].split(", ") if step]
    is_resumed = len(resumed) == len(KILLS) and all(resumed)
    return is_resumed and all(row[column] == "same" for column in ("repeats", *COLUMNS))


def claim(trials: Mapping[str, Trial]) -> list[Claim]:
    """Judge truestep's rows, and those that have the lines which verify prints."""
    claims = []
    for scenario in SCENARIOS:
        ours = is_green(trials["truestep"], scenario) if "truestep" in trials else None
        claims.append(fact(f"truestep, {scenario.title}: resumed, and the same in every column", ours))
        repaired = [is_green(trial, scenario) for name, trial in trials.items() if name.endswith("-repaired")]
        found = all(repaired) if repaired else None
        claims.append(fact(f"{len(repaired)} others as repaired, {scenario.title}: so too", found))
    num_kills = sum(trial.num_kills for trial in trials.values())
    num_orphans = sum(trial.num_orphans for trial in trials.values())
    claims.append(fact(f"{num_kills} kills, and no process outlived its own", num_orphans == 0))
    return claims


def list_rows(trials: Mapping[str, Trial], labels: Mapping[str, str], *, as_json: bool) -> list[Sheet]:
    note = (
        "repeats: two runs that nobody killed are equal. resumed at: the steps at which the two resumed"
        " processes began. order: indices of the samples that each step consumed; data: their augmented"
        " bits; weights: the final digest; each against the same tool's run that nobody killed."
    )
    sheets = []
    for scenario in SCENARIOS:
        rows: list[Row] = [
            {"tool": labels[name], **trial.rows[scenario.title]} for name, trial in trials.items()
        ]
        sheets.append(
            Sheet(title=f"After two kills, {scenario.title}", rows=rows, note="" if sheets else note)
        )
    errors: list[Row] = [
        {"tool": labels[name], "error in full": error if as_json else escape(error)}
        for name, trial in trials.items()
        for error in trial.errors
    ]
    if errors:
        sheets.append(Sheet(title="Errors", rows=errors))
    versions: list[Row] = [{"package": name, "version": find_version(name)} for name in PACKAGES]
    sheets.append(Sheet(title="Versions", rows=versions))
    return sheets


def find_version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def parse(known: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="comma-separated: " + ",".join(known))
    parser.add_argument("--quick", action="store_true", help="truestep and one other, under a minute")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else QUICK if options.quick else known
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"--only knows {', '.join(known)}; got {', '.join(unknown)}.")
    options.names = [name for name in known if name in names]
    return options


def main() -> int:
    quieten()
    options = parse(list(loops.CONTENDERS))
    # The server that all children are forked from imports everything once; it finds the loops by this alone.
    given = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *([given] if given else [])])
    modules = dict.fromkeys(m for name in options.names for m in loops.CONTENDERS[name].modules)
    preload = ["peers_loops", "truestep.run.train", "torch._dynamo", *modules]
    multiprocessing.get_context("forkserver").set_forkserver_preload(preload)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root, ThreadPoolExecutor(2) as pool:
        trials = {name: Trial(name, Path(root)) for name in options.names}
        list(pool.map(Trial.run, trials.values()))
    labels = {name: loops.CONTENDERS[name].label for name in trials}
    sheets = list_rows(trials, labels, as_json=options.json)
    return report("peers_resume", sheets=sheets, claims=claim(trials), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
