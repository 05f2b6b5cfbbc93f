"""Runs generated programs: as often as they are killed, on as many processes as they are given, and compares.

Owns what is promised of a program (`problems`) and which programs there are (`trials`).
Usage: python -m tests.run.train.generated "Program(lanes=2), Life(end='kill', at=3), Life(processes=2)"
"""

import json
import signal
import sys
import tempfile
import time
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

from tests import processes
from tests.run.train.programs import (
    BUFFERS,
    ENDS,
    GENERATORS,
    OPTIMIZERS,
    PLACES,
    SCHEDULERS,
    Life,
    Program,
    live,
)

LIMIT_S = 60.0
_UNVERIFIED = "is unverified"
_OTHER_GRADIENT = "first lane's gradient at step"


class Trial(NamedTuple):
    """A program and the starts of its script in one folder; the last of them reaches the end."""

    program: Program
    lives: tuple[Life, ...]

    def __repr__(self) -> str:
        return ", ".join(map(repr, (self.program, *self.lives)))


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


def refusals(program: Program, life: Life) -> list[str]:
    """Return the words with one of which a program has to be refused; none where it has to train."""
    words = {
        "is not tracked (tracked optimizers": program.untracked == "optimizer",
        "is not tracked, so a resumed run": program.untracked == "scheduler",
        "changes inside a lane": program.buffer.startswith("counting") and life.processes > 1,
    }
    return [text for text, is_refused in words.items() if is_refused]


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
        wrong = _judge(trial, 0, Life(), whole, expected)
        for number, life in enumerate(trial.lives, start=1):
            outcome = _lead(program, life, Path(root, "lives"))
            if program.untracked == "number" and number > 1 and _is_admitted(outcome):
                return wrong  # what is not tracked is lost, and the run has said so
            wrong += _judge(trial, number, life, outcome, expected)
    return wrong


def _is_admitted(outcome: Outcome) -> bool:
    """Whether the run said itself that what it computes may have other bits."""
    return _UNVERIFIED in outcome.printed or any(_OTHER_GRADIENT in text for text in outcome.errors)


def _judge(
    trial: Trial, number: int, life: Life, outcome: Outcome, expected: dict[str, Any] | None
) -> list[str]:
    """Return what is wrong with one life of a program."""
    where = f"life {number}, {life}" if number else "undisturbed"
    words = refusals(trial.program, life)
    if any(word in text for word in words for text in outcome.errors):
        return []
    if _is_planned(life, outcome):
        return []
    if outcome.errors:
        return [f"{where}: {outcome.errors[0].strip()}"]
    if expected is None:
        return [f"{where}: not refused with {words!r}"] if words else []
    lost = {"ema"} if trial.program.untracked == "ema" and number > 1 else set()
    wrong = []
    for rank, found in enumerate(outcome.found):
        if found is None:
            wrong.append(f"{where}: process {rank} ended without a word\n{outcome.printed[-2000:]}")
            continue
        names = expected.keys() if rank == 0 else found.keys()
        differing = [name for name in names if name not in lost and found.get(name) != expected[name]]
        if differing:
            wrong.append(f"{where}: other bits on process {rank} in {', '.join(differing)}")
    return wrong


def _subsets(values: Any, *, most: int) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(st.sampled_from(list(values)), max_size=most, unique=True).map(
        lambda chosen: tuple(sorted(chosen))
    )


def _or_without(*values: str) -> st.SearchStrategy[str]:
    return st.sampled_from(["", *values])


@st.composite
def programs(choose: st.DrawFn) -> Program:
    """Return any program whose features go together."""
    is_in_epochs, norm = choose(st.booleans()), choose(_or_without("dropout", "batch", "cumulative"))
    data = choose(
        st.sampled_from(["tensors", "list", "samples", "stream", *([] if is_in_epochs else ["endless"])])
    )
    phases = tuple(choose(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    scheduler = choose(_or_without(*SCHEDULERS))
    second = choose(_or_without("same pass", "own pass", "later phases"))
    is_alone = not scheduler and not second and len(phases) > 1
    ema = choose(_or_without("averaged", "by hand"))
    buffers = [name for name in BUFFERS if not (ema and name == "expanded")]  # torch cannot write to it
    is_normed = norm in ("batch", "cumulative")
    untracked = ["optimizer", "number", *(["ema"] if ema else [])]
    untracked += ["scheduler"] if scheduler in ("cosine", "one cycle") else []
    evaluates = ["step", "step after"] if scheduler == "plateau" else ["", "step", "between", "between after"]
    return Program(
        lanes=choose(st.integers(1, 4)),
        phases=phases,
        in_epochs=is_in_epochs,
        leaves_at=choose(st.none() | st.integers(0, 6)),
        draws=choose(_subsets([(place, name) for place in PLACES for name in GENERATORS], most=8)),
        draws_from=choose(st.integers(0, 3)),
        data=data,
        num_samples=choose(st.sampled_from([16, 24] if is_normed else [16, 13, 17, 24])),
        shuffle=choose(st.booleans()),
        drop_last=is_normed or choose(st.booleans()),
        own_collate=choose(st.booleans()),
        own_loaders=choose(st.booleans()),
        norm=norm,
        buffer=choose(_or_without(*buffers, "counting", "counting late")),
        optimizer=choose(st.sampled_from(list(OPTIMIZERS))),
        second=second,
        scheduler=scheduler,
        ema=ema,
        clip=choose(_or_without("norm", "value")),
        losses=choose(_or_without("two", "retained", "joint")),
        stray=choose(_or_without("lane", "lanes", "end")),
        is_weighted=choose(st.booleans()),
        skips_at=choose(st.none() | st.integers(0, 5)),
        evaluates=choose(st.sampled_from(evaluates)),
        between=choose(_or_without("rate", *(["group"] if is_alone else []))),
        has_notes=choose(st.booleans()),
        untracked=choose(st.sampled_from([""] * 8 + untracked)),
        precision=choose(st.sampled_from(["fp32", "fp32", "bf16"])),
        every_steps=choose(st.integers(1, 3)),
        in_background=choose(st.booleans()),
    )


@st.composite
def trials(choose: st.DrawFn, *, max_processes: int = 4) -> Trial:
    """Return a program and one to three lives of it: all but the last end early."""
    program = choose(programs())
    most = min(program.lanes, max_processes)
    starts = st.builds(
        Life,
        processes=st.integers(1, most),
        workers=st.sampled_from([0, 0, 1, 2, 3]),
        parallel=st.sampled_from(["ddp", "flat"]),
    )
    lives = [choose(_ends(start)) for start in choose(st.lists(starts, max_size=2))]
    return Trial(program, (*lives, choose(starts)))


def _ends(start: Life) -> st.SearchStrategy[Life]:
    @st.composite
    def with_end(choose: st.DrawFn) -> Life:
        place = choose(st.sampled_from(ENDS))
        is_signal_only = place in ("save", "moment")
        end = "kill" if is_signal_only else choose(st.sampled_from(["kill", "kill", "terminate", "fail"]))
        at = choose(st.integers(0, 60 if is_signal_only else 9))
        rank = choose(st.integers(0, start.processes - 1))
        return Life(**{**vars(start), "end": end, "place": place, "at": at, "rank": rank})

    return with_end()


def explain(trial: Trial, wrong: list[str]) -> str:
    """Return what is wrong with a program, and the line that shows it again."""
    return "\n".join([f"python -m tests.run.train.generated {str(trial)!r}", *wrong])


def main() -> int:
    """Try the one program that is given as a line."""
    program, *lives = eval(sys.argv[1], {"Program": Program, "Life": Life})
    wrong = problems(Trial(program, tuple(lives)))
    print("\n".join(wrong) or "one digest")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
