"""Programs of many features: killed at any moment, on any number of processes and workers, one digest."""

import json
import signal
import tempfile
import time
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests import processes
from tests.run.train.programs import PLACES, Life, Program, live

LIMIT_S = 60.0


class Trial(NamedTuple):
    """A program and the starts of its script in one folder; the last of them reaches the end."""

    program: Program
    lives: tuple[Life, ...]


class Outcome(NamedTuple):
    """What became of one life: on each process what it ended with, how it failed, and what it printed."""

    found: list[dict[str, Any] | None]
    errors: list[str]
    printed: str
    is_killed: bool


def _end(started: list[Any], life: Life) -> bool:
    """Wait until a life is over and kill the others when one process is gone; return whether any was."""
    is_timed = bool(life.end) and life.place == "moment"
    deadline_s = time.monotonic() + (life.at / 100 if is_timed else LIMIT_S)
    is_late = False
    while alive := [process for process in started if process.is_alive()]:
        is_late = not wait([process.sentinel for process in alive], max(0.0, deadline_s - time.monotonic()))
        codes = [process.exitcode or 0 for process in started]
        # All processes stop together after SIGTERM; no launcher would end the others then.
        if is_late or min(codes) < 0 or (any(codes) and life.end != "terminate"):
            for process in alive:
                process.kill()
            break
    for process in started:
        process.join()
    if is_late and not is_timed:
        raise TimeoutError(f"{life} took more than {LIMIT_S} s")
    return any(process.exitcode in (-signal.SIGKILL, -signal.SIGTERM) for process in started)


def _lead(program: Program, life: Life, folder: Path) -> Outcome:
    """Start a program's script, wait for its end, and gather what it left."""
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*-[0-9]"):
        old.unlink()
    (folder / "store").unlink(missing_ok=True)
    ranks = range(life.processes)
    start = processes._CONTEXT.Process
    started = [start(target=live, args=(program, life, str(folder), rank)) for rank in ranks]
    for process in started:
        process.start()
    is_killed = _end(started, life)
    found = [folder / f"found-{rank}" for rank in ranks]
    return Outcome(
        [json.loads(path.read_text()) if path.exists() else None for path in found],
        [path.read_text() for path in sorted(folder.glob("error-*"))],
        "".join(path.read_text(errors="replace") for path in sorted(folder.glob("printed-*"))),
        is_killed,
    )


def _is_planned(life: Life, outcome: Outcome) -> bool:
    """Whether a life ended the way it was meant to."""
    ways = ("programs.Failed", "SystemExit: 143", "DataLoader worker")
    return bool(life.end) and (
        outcome.is_killed or any(way in text for text in outcome.errors for way in ways)
    )


def problems(trial: Trial) -> list[str]:
    """Return what is wrong with a program: the promise is that there is nothing."""
    program = trial.program
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True, prefix="truestep-") as root:
        whole = _lead(program, Life(), Path(root, "whole"))
        expected = whole.found[0]
        wrong = _judge(0, Life(), whole, expected)
        for number, life in enumerate(trial.lives, start=1):
            outcome = _lead(program, life, Path(root, "lives"))
            wrong += _judge(number, life, outcome, expected)
    return wrong


def _judge(number: int, life: Life, outcome: Outcome, expected: dict[str, Any] | None) -> list[str]:
    """Return what is wrong with one life of a program."""
    where = f"life {number}, {life}" if number else "undisturbed"
    if _is_planned(life, outcome):
        return []
    if outcome.errors or expected is None:
        return [f"{where}: {''.join(outcome.errors).strip()}"]
    wrong = []
    for rank, found in enumerate(outcome.found):
        if found is None:
            wrong.append(f"{where}: process {rank} ended without a word\n{outcome.printed[-2000:]}")
            continue
        names = expected.keys() if rank == 0 else found.keys()
        differing = [name for name in names if found.get(name) != expected[name]]
        if differing:
            wrong.append(f"{where}: other bits on process {rank} in {', '.join(differing)}")
    return wrong


def _draws(generator: str) -> tuple[tuple[str, str], ...]:
    """Draw from a generator everywhere."""
    return tuple((place, generator) for place in PLACES)


TRIALS = [
    Trial(
        Program(
            lanes=4, phases=(4, 3), draws=_draws("torch"), data="samples", norm="dropout", evaluates="step"
        ),
        (
            Life(processes=2, end="kill", place="body", at=1),
            Life(processes=3, workers=1, end="kill", place="between", rank=2),
            Life(processes=4, parallel="flat"),
        ),
    ),
    Trial(
        Program(lanes=3, in_epochs=True, draws=_draws("random"), data="samples", num_samples=17, clips=True),
        (
            Life(workers=2, end="kill", place="sample", at=3),
            Life(processes=2, end="fail", place="lane", at=4),
            Life(processes=3, parallel="flat"),
        ),
    ),
    Trial(
        Program(
            draws=_draws("numpy"),
            precision="bf16",
            optimizer="adamw",
            scheduler="cosine",
            has_ema=True,
            clips=True,
        ),
        (Life(end="kill", place="end", at=2), Life(workers=1, end="kill", place="moment", at=40), Life()),
    ),
    Trial(
        Program(lanes=2, draws=_draws("numpy"), draws_from=2, num_samples=24, drop_last=True, norm="batch"),
        (Life(processes=2, end="terminate", place="lanes", at=3, rank=1), Life(workers=2)),
    ),
    Trial(
        Program(lanes=2, draws=_draws("torch"), data="stream", shuffle=False, losses="two"),
        (Life(workers=1, end="kill", place="save", at=5), Life(end="kill", place="after"), Life(processes=2)),
    ),
    Trial(
        Program(lanes=4, data="endless", scheduler="plateau", evaluates="step", draws=_draws("random")),
        (
            Life(processes=4, end="kill", place="evaluate", at=3, rank=3),
            Life(processes=2, end="terminate", place="body", at=4),
            Life(),
        ),
    ),
    Trial(
        Program(lanes=4, has_critic=True, is_weighted=True, num_samples=13, losses="retained"),
        (Life(processes=3, end="kill", place="lane", at=2, rank=1), Life(processes=2, workers=3)),
    ),
    Trial(
        Program(lanes=2, phases=(5, 2), leaves_at=2, draws=_draws("torch"), every_steps=1),
        (Life(end="kill", place="after"), Life(processes=2)),
    ),
    Trial(
        Program(
            lanes=3,
            norm="cumulative",
            num_samples=24,
            drop_last=True,
            skips_at=2,
            every_steps=1,
            in_background=True,
        ),
        (
            Life(processes=2, end="kill", place="save", at=12),
            Life(end="kill", place="moment", at=60),
            Life(processes=3, workers=2),
        ),
    ),
    Trial(
        Program(
            lanes=2,
            phases=(4, 4),
            in_epochs=True,
            data="list",
            scheduler="by hand",
            has_ema=True,
            evaluates="between",
        ),
        (Life(processes=2, end="fail", place="between"), Life(workers=1)),
    ),
]


@pytest.mark.parametrize("trial", TRIALS, ids=range(len(TRIALS)))
def test_a_program_ends_with_one_digest_however_it_is_run(trial: Trial) -> None:
    assert problems(trial) == []
