"""Every benchmark's claim in its short form."""

import importlib
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


def _run(script: str, *arguments: str, codes: tuple[int, ...] = (0,)) -> Any:
    command = [sys.executable, str(FOLDER / script), "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode in codes, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("script", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_what_a_benchmark_imports_is_there(script: Path) -> None:
    if "argparse" in script.read_text():
        command = [sys.executable, str(script), "--help"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_kills_do_not_change_a_bit() -> None:
    result = _run("kill.py", "--kills", "20")
    assert result["kills"] >= 20 and result["in_save"] * 3 >= result["kills"]
    assert len(result["members"]) == 10


@pytest.mark.slow
def test_processes_workers_and_layouts_do_not_change_a_bit() -> None:
    result = _run("scale.py", "--short")
    assert [claim["verdict"] for claim in result["claims"]] == ["holds", "holds"]
    (rows,) = result["tables"].values()
    assert len(rows) == 10 and all(row["combinations"] == 8 and not row["differing"] for row in rows)


def test_every_promise_can_still_be_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    assert importlib.import_module("broken_promises").stale() == []


@pytest.fixture
def scale(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("scale")


def test_short_form_has_each_pair_of_values(scale: Any) -> None:
    values = {
        "member": [f"member {number}" for number in range(10)],
        "size": scale.SHORT_SIZES,
        "workers": scale.WORKERS,
        "layout": scale.LAYOUTS,
    }
    cases = scale.every_pair(*values.values())
    for first, second in itertools.combinations(values, 2):
        found = {(getattr(case, first), getattr(case, second)) for case in cases}
        assert found == set(itertools.product(values[first], values[second]))


def test_a_difference_is_named_with_part_process_and_first_step(scale: Any) -> None:
    steps = {step: {"loss": "0x1p+0", "grad_norm": "0x1p-1"} for step in range(4)}
    expected = scale.Outcome(digests={0: {"model": "a", "ema": "b"}}, steps=steps)
    same = scale.Outcome(digests={0: {"model": "a", "ema": "b"}, 1: {"model": "a", "ema": "b"}}, steps=steps)
    assert scale.differences(same, expected) == []
    other_steps = {**steps, 2: {"loss": "0x1p+0", "grad_norm": "0x1p-2"}}
    other = scale.Outcome(digests={0: {"model": "a", "ema": "b"}, 1: {"model": "c"}}, steps=other_steps)
    assert scale.differences(other, expected) == [
        "ema differs on ranks [1]",
        "model differs on ranks [1]",
        "the record's grad_norm from step 2 on",
    ]


@pytest.mark.slow
def test_check_changes_nothing_about_scripts_of_the_corpus_and_programs_made_by_chance() -> None:
    result = _run("non_interference.py", "--preloaded", "--only", "/", "--corpus", "6")
    assert result["claims"][0]["verdict"] == "holds", result["tables"]


def test_check_ends_no_script_beside_which_threads_run_other_models() -> None:
    result = _run("non_interference.py", "--preloaded", "--threads", "2", "--only", "modules,summaries")
    assert [claim["verdict"] for claim in result["claims"]] == ["holds", "holds"], result["tables"]
