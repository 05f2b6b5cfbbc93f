"""The cost model of benchmarks/scale_model.py: its formulas, its fits, and what is kept of a busy hour."""

import importlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.processes import run_processes
from truestep.dist.reduce import TreeReduce

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def formulas(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("scale_formulas")


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("scale_checks")


@pytest.fixture
def machine(formulas: Any) -> Any:
    return formulas.Machine(
        cores=2,
        message_s=5e-5,
        ring_s=3e-5,
        byte_s=3e-10,
        add_s=1e-10,
        pack_s=1e-10,
        wait_s=1e-5,
        message_switch=0.1,
        ring_power=-0.5,
        byte_switch=0.2,
    )


@pytest.fixture
def task(formulas: Any) -> Any:
    return formulas.Task(num_bytes=8_000_000, step_s=0.004, lane_s=0.003, sample_s=2e-5)


def test_processes_that_share_cores_take_their_share_of_the_clock(formulas: Any, machine: Any) -> None:
    shares = [formulas.side_by_side(1.0, size, machine) for size in (1, 2, 3, 8)]
    assert shares == pytest.approx([1.0, 1.0, 1.5, 4.0])


def test_processes_in_step_leave_cores_idle_while_the_last_one_works(formulas: Any, machine: Any) -> None:
    steps = [formulas.in_step([1.0] * size, machine).clock_s for size in (1, 2, 3, 8)]
    assert steps == pytest.approx([1.0, 1.0, 1.75, 4.25])
    assert formulas.in_step([1.0, 3.0], machine).clock_s == 3.0  # nobody is faster than the slowest
    waiting = formulas.in_step([1.0, 1.0], machine, num_rounds=100)
    assert waiting.clock_s == pytest.approx(1.001) and waiting.processor_s == 2.0


def test_fitted_terms_are_those_that_made_the_steps(formulas: Any, machine: Any, task: Any) -> None:
    steps = {
        (lanes, samples): formulas.step(1, machine, task, num_lanes=lanes, num_samples=samples).processor_s
        for lanes, samples in [(2, 64), (8, 64), (8, 256)]
    }
    fitted = formulas.fit_task(steps, num_bytes=task.num_bytes, add_s=machine.add_s)
    assert vars(fitted) == pytest.approx(vars(task))
    beside = replace(task, beside=1.3)
    found_s = formulas.step(2, machine, beside, num_lanes=4, num_samples=64).processor_s
    fitted = formulas.fit_beside(task, machine, found_s, num_lanes=4, num_samples=64)
    assert vars(fitted) == pytest.approx(vars(beside))


def test_fitted_parts_of_a_restart_are_those_that_made_it(formulas: Any, machine: Any) -> None:
    made = formulas.Restart(peers_s=1.5, launch_s=0.7, start_s=2.2, byte_s=1e-8)
    small, large = 4_000_000, 64_000_000
    found = {
        (size, num_bytes): made.at(size, machine, num_bytes=num_bytes)
        for size, num_bytes in [(1, small), (1, large), (2, small), (4, small)]
    }
    assert vars(formulas.fit_restart(found, machine)) == pytest.approx(vars(made))


def _count(num_values: int) -> tuple[int, int, int]:
    """Run on each process: messages and bytes that it sends, and bytes that it adds, to sum a vector."""
    import torch
    import torch.distributed as dist

    num_added = 0
    add = torch.add

    def count(left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        nonlocal num_added
        num_added += len(left)
        return add(left, right, out=out)

    torch.add = count
    tree = TreeReduce(rank=dist.get_rank(), size=dist.get_world_size(), num_lanes=8)
    tree.all_reduce([torch.ones(num_values) for _ in tree.nodes])
    return tree.num_messages, tree.num_bytes_sent, 4 * num_added


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3, 4])
def test_predicted_are_the_messages_and_bytes_that_processes_send_and_add(
    formulas: Any, machine: Any, size: int
) -> None:
    num_values = 120_000
    counts = run_processes(_count, num_values, size=size)
    free = {"byte_s": 0.0, "message_s": 0.0, "add_s": 0.0, "message_switch": 0.0, "byte_switch": 0.0}
    for place, term in enumerate(("message_s", "byte_s", "add_s")):
        only = replace(machine, **{**free, term: 1.0})
        predicted = formulas.tree_sum(size, only, num_lanes=8, num_bytes=4 * num_values).processor_s
        assert predicted == pytest.approx(sum(found[place] for found in counts)), term


def test_order_walks_as_often_as_its_network_is_larger(formulas: Any) -> None:
    assert formulas.walk_factor(2**20) == 1.0
    assert formulas.walk_factor(2**20 + 1) == pytest.approx(2.0, rel=1e-5)
    assert [formulas.is_wide(number) for number in (10**6, 10**9, 10**12)] == [False, False, True]


def test_only_what_was_disturbed_is_measured_again(checks: Any, tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    measured = iter([{"a": [[1.0, 0.9]]}, {"a": [[2.0, 0.0]]}])
    is_quiet = lambda found: min(others for _, others in found["a"]) == 0.0  # noqa: E731
    assert checks.Kept(str(path)).get("steps", lambda: next(measured), is_enough=is_quiet) == {
        "a": [[1.0, 0.9]]
    }
    both = {"a": [[1.0, 0.9], [2.0, 0.0]]}
    assert checks.Kept(str(path)).get("steps", lambda: next(measured), is_enough=is_quiet) == both
    assert checks.Kept(str(path)).get("steps", lambda: next(measured), is_enough=is_quiet) == both
    assert json.loads(path.read_text()) == {"steps": both}


def test_turns_count_by_what_others_did_not_by_how_long_they_took(checks: Any) -> None:
    busy = [checks.terms.Turn(clock, 1.0, 0.9) for clock in range(20)]
    some = [checks.terms.Turn(clock, 1.0, others) for clock, others in [(50, 0.0), (60, 0.05), (70, 0.0)]]
    assert checks.terms.quietest([*busy, *some]).others == 0.9  # too few of them to tell
    quiet = checks.terms.quietest([*busy, *some, *some])
    assert (quiet.clock_s, quiet.others) == (60, 0.05)


@pytest.mark.slow
def test_the_order_needs_the_memory_that_was_predicted_at_any_size(checks: Any) -> None:
    _, points = checks.check_order(checks.Kept(None))
    memory = [point for point in points if point.unit == "kB of memory"]
    assert len(memory) == 4 and all(abs(point.off) < 0.25 for point in memory)


@pytest.mark.slow
def test_turns_are_timed_in_real_processes(checks: Any, tmp_path: Path) -> None:
    whats = {name: what for name, what in checks.contenders(2).items() if name in (checks.CHAT, checks.TALK)}
    turns, _ = checks.loops.run_processes(checks.terms.time_all, whats, tmp_path, 0.0, size=2)
    assert {name: len(found) for name, found in turns.items()} == {checks.CHAT: 6, checks.TALK: 6}
    for turn in [turn for found in turns.values() for turn in found]:
        assert turn.processor_s > 0 and 1e-6 < turn.clock_s < 1.0 and turn.others >= 0


@pytest.mark.slow
def test_formula_and_simulation_of_goodput_agree_in_all_cases_of_the_page() -> None:
    command = [sys.executable, str(FOLDER / "goodput.py"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (rows,) = json.loads(done.stdout)["tables"].values()
    assert [row["ranks"] for row in rows] == ["10", "100", "1,000", "10,000"] * 3
    page = (FOLDER.parent / "docs" / "scale-measured.md").read_text()
    for row in rows:
        assert f"{row['best interval, s']:,.0f} s | {row['goodput, %']:.2f} %" in page
