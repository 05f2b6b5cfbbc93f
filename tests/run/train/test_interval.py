"""How often to save: the formula against a simulation, the suggestion, and who hears it."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.run.train.small import train
from truestep.record import read
from truestep.run.train.interval import History, advise, best_interval, goodput, read_history, suggest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
CASES = [(0.5, 10_000.0), (0.02, 3600.0), (30.0, 20_000.0), (1e-3, 1e7)]
"""Seconds that a snapshot holds the loop, and between failures."""
SLOW = History(num_failures=2, trained_s=20_000.0, interval_s=1800.0, held_s=0.5, write_s=20.0, lost_s=1500.0)


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("goodput")


@pytest.mark.parametrize(("held_s", "failure_every_s"), CASES)
def test_no_other_interval_is_better_than_the_best(held_s: float, failure_every_s: float) -> None:
    best_s = best_interval(held_s, failure_every_s=failure_every_s)
    best = goodput(best_s, held_s=held_s, failure_every_s=failure_every_s)
    for factor in (0.01, 0.5, 0.97, 1.03, 2.0, 100.0):
        assert goodput(factor * best_s, held_s=held_s, failure_every_s=failure_every_s) < best


@pytest.mark.parametrize(("held_s", "failure_every_s"), CASES)
def test_the_best_interval_is_that_of_young_where_snapshots_are_cheap(
    held_s: float, failure_every_s: float
) -> None:
    young_s = (2 * held_s * failure_every_s) ** 0.5
    # A bound, not a digest: Young's is the first term of the exact one, the next is smaller by held / young.
    assert best_interval(held_s, failure_every_s=failure_every_s) == pytest.approx(
        young_s, rel=held_s / young_s
    )


@pytest.mark.parametrize("interval_s", [240.0, 600.0, 1800.0])
def test_simulation_and_formula_agree_within_half_a_hundredth(simulation: Any, interval_s: float) -> None:
    case = simulation.Case(failure_every_s=9000.0, held_s=2.0, write_s=200.0, restart_s=400.0, step_s=1.0)
    found = simulation.simulate(case, interval_s, draw=simulation.at_random(case, 1))
    assert abs(found - case.formula(interval_s)) < simulation.MOST_OFF
    without_writing = simulation.Case(failure_every_s=9000.0, held_s=2.0, write_s=0.0, restart_s=0.0)
    assert found + 0.02 < without_writing.formula(interval_s)  # what is left out of a formula would be seen


def test_simulation_finds_the_best_interval_where_the_formula_has_it(simulation: Any) -> None:
    case = simulation.make_case(simulation.RSC_1, 10_000)
    assert 90 < case.best_s < 120
    at = {
        factor: simulation.simulate(case, factor * case.best_s, draw=simulation.at_random(case, 3))
        for factor in (1, 5, 25)
    }
    assert at[1] > at[5] > at[25]


def test_a_long_interval_is_told_with_what_it_lost_and_what_to_pass() -> None:
    line = suggest(SLOW, max_share=0.01)
    assert line == (
        "snapshots every 30 min take 0.028 % of the time, the last failure undid 25 min. With a failure "
        "every 2.78 h, one every 100 s would leave 98.8 % of the time to training instead of 91.1 %: pass "
        "snapshots=Snapshots(every_s=100) to Run"
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"interval_s": 250.0}, "the gain is less than a hundredth"),
        ({"trained_s": 500.0, "interval_s": 60.0}, "it has cost less than a minute so far"),
        ({"interval_s": 0.0}, "there is no interval to speak of"),
    ],
)
def test_nothing_is_said_where_little_is_lost(change: dict[str, float], why: str) -> None:
    assert suggest(SLOW, max_share=0.01) is not None
    assert suggest(History(**{**vars(SLOW), **change}), max_share=0.01) is None, why


def test_no_interval_is_suggested_that_would_not_be_kept() -> None:
    costly = History(**{**vars(SLOW), "held_s": 5.0})
    line = suggest(costly, max_share=0.01)
    assert line is not None and "every_s=500" in line  # 320 s would be best; a hundredth of the time is 500
    slowly_written = History(**{**vars(SLOW), "write_s": 150.0})
    line = suggest(slowly_written, max_share=0.01)
    assert line is not None and "every_s=150" in line


def test_snapshots_too_often_are_told_too() -> None:
    often = History(**{**vars(SLOW), "interval_s": 5.0})
    line = suggest(often, max_share=0.01)
    assert line is not None and "take 10 % of the time" in line and "every_s=100" in line


def _life(begun_s: float, cursor: int, *, seconds: int, every: int, is_ended: bool) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [{"kind": "start", "time_s": begun_s, "cursor": cursor}]
    for second in range(1, seconds + 1):
        now = {"time_s": begun_s + second}
        events.append({"kind": "steps", "first": cursor + second - 1, **now})
        if second % every == 0:
            snapshot = {"kind": "snapshot", "cursor": cursor + second, "held_s": 0.5, "write_s": 7.0}
            events.append({**snapshot, **now})
    return [*events, {"kind": "end", "time_s": begun_s + seconds, "cursor": 0}] if is_ended else events


def test_a_record_tells_interval_failures_and_what_was_undone() -> None:
    events = [
        *_life(0.0, 0, seconds=1000, every=300, is_ended=False),
        {"kind": "verify", "time_s": 5000.0},  # another command's line is no sign of life
        *_life(1100.0, 900, seconds=250, every=100, is_ended=True),
        *_life(2000.0, 1100, seconds=650, every=300, is_ended=False),
        {"kind": "start", "time_s": 2700.0, "cursor": 1400},
    ]
    assert read_history(events) == History(
        num_failures=2, trained_s=1900.0, interval_s=300.0, held_s=0.5, write_s=7.0, lost_s=350.0
    )
    assert read_history(events[:-1]) is None  # the one before ended by itself


def test_a_record_that_makes_no_sense_gives_no_advice(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    assert advise(record, max_share=0.01) is None
    for lines in (['{"kind":"start"}'], ['{"kind":"start","time_s":"x"}'], ["torn"], []):
        record.write_text("\n".join(lines))
        assert advise(record, max_share=0.01) is None


def test_the_record_says_how_long_snapshots_took_to_write(tmp_path: Path) -> None:
    train(tmp_path)
    first, *others = [event for event in read(tmp_path / "record.jsonl") if event["kind"] == "snapshot"]
    assert first["write_s"] is None
    assert others and all(event["write_s"] > 0 for event in others)


# Killed in its first life; then as much time seems to have passed as the script is told.
SCRIPT = """
import json, os, signal, sys
from pathlib import Path
from tests.run.train.small import train
import truestep as ts
from truestep.record import read
from truestep.run.train import Step

folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
update = Step.update

def update_and_die(step, *args, **more):
    update(step, *args, **more)
    if step.index != 13 or os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
        return
    events = list(read(folder / "record.jsonl"))
    for number, event in enumerate(events):
        event["time_s"] += seconds * (number / len(events) - 1)
    (folder / "record.jsonl").write_text("".join(json.dumps(event) + "\\n" for event in events))
    os.kill(os.getpid(), signal.SIGKILL)

Step.update = update_and_die
train(folder, num_steps=20, progress=True, snapshots=ts.Snapshots(every_s=None, every_steps=5))
"""


def _run(folder: Path, seconds: float) -> str:
    """Run the script by `truestep run` to its end, through a kill; return what was said."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3]), *sys.path])}
    command = [str(Path(sys.executable).with_name("truestep")), "run", str(script), str(folder / "run")]
    done = subprocess.run(
        [*command, str(seconds)], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0 and "was killed by SIGKILL; restarting" in done.stderr, done.stderr
    return done.stderr


def test_truestep_run_says_after_a_restart_which_interval_would_be_better(tmp_path: Path) -> None:
    said = _run(tmp_path, 24 * 3600.0)
    assert re.search(
        r"With a failure every 2\d\.?\d* h, one every .* pass snapshots=Snapshots\(every_s=\d", said
    )
    assert said.count("Snapshots(") == 1


def test_a_short_run_that_was_killed_hears_nothing(tmp_path: Path) -> None:
    said = _run(tmp_path, 0.0)
    assert "resumed after step" in said and "Snapshots" not in said
