"""Watching as `check` does it: not a bit changed, nothing kept alive, and no trouble on the way."""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.watch.test_zoo import QUICK, REST
from tests.watch.watching import SCRIPTS, Done, run, run_bare, run_watched
from truestep import watch
from truestep.rules import check_plan

EXAMPLES = Path(__file__).parents[2] / "examples"
LOOPS = ("recompute", "scale", "search", "work", "penalise")


def check(script: Path, *arguments: str, folder: Path) -> tuple[Done, watch.Process]:
    """Run a script bare and as `check` does: it prints the same, and the evidence is whole."""
    bare = run_bare(script, *arguments, cwd=_new(folder / "bare"))
    assert bare.code == 0, bare.stderr
    kept = _new(folder / "evidence")
    done = run_watched(script, *arguments, folder=kept, plan=check_plan(), cwd=_new(folder / "watched"))
    assert (done.code, done.stdout) == (bare.code, bare.stdout)
    assert _without_times(done.stderr) == _without_times(bare.stderr)
    (process,) = watch.read(kept)
    assert process.troubles == []
    assert process.ended == "finished"
    assert process.num_steps > 0 and process.operations and _kinds(process) >= {"roster", "applied", "graph"}
    return bare, process


def _without_times(text: str) -> str:
    lines = [line for line in text.splitlines() if "steps/s" not in line]  # those are printed by the clock
    return re.sub(r"\d+\.\d s\b", "... s", "\n".join(lines))


def _new(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _kinds(process: watch.Process) -> set[str]:
    return {moment.kind for moment in process.moments}


def test_loops_that_are_easily_disturbed_keep_their_bits(tmp_path: Path) -> None:
    bare, process = check(SCRIPTS / "inspected.py", *LOOPS, folder=tmp_path)
    assert [line.split()[0] for line in bare.stdout.splitlines() if " " in line] == list(LOOPS)
    assert {"skipped", "schedule", "worker", "samples", "layers", "pass"} <= _kinds(process)


@pytest.mark.parametrize("names", [("mlp", "gan"), pytest.param((*QUICK, *REST), marks=pytest.mark.slow)])
def test_zoo_keeps_its_bits(tmp_path: Path, names: tuple[str, ...]) -> None:
    script = SCRIPTS / "zoo_members.py"
    bare = run_bare(script, str(tmp_path / "bare"), *names)
    done = run_watched(
        script, str(tmp_path / "watched"), *names, folder=_new(tmp_path / "kept"), plan=check_plan()
    )
    assert done.code == bare.code == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(bare.stdout)
    assert set(json.loads(bare.stdout)) == set(names)
    (process,) = watch.read(tmp_path / "kept")
    assert process.troubles == [] and {"roster", "applied"} <= _kinds(process)


@pytest.mark.parametrize("num_steps", ["5", "200"])
def test_nothing_is_kept_alive(tmp_path: Path, num_steps: str) -> None:
    bare, _ = check(SCRIPTS / "inspected_memory.py", num_steps, folder=tmp_path)
    assert "alive 0 0 0 0" in bare.stdout


@pytest.mark.slow
def test_compiled_model_stays_compiled_and_keeps_its_bits(tmp_path: Path) -> None:
    bare, _ = check(SCRIPTS / "compiled.py", folder=tmp_path)
    assert "unique_graphs" in bare.stdout


@pytest.mark.slow
def test_company_of_other_modes_keeps_its_bits(tmp_path: Path) -> None:
    check(SCRIPTS / "look_company.py", folder=tmp_path)


@pytest.mark.slow
def test_sharded_training_keeps_its_bits(tmp_path: Path) -> None:
    script = SCRIPTS / "look_parallel.py"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    bare = run([*launch, str(script)])
    assert bare.code == 0 and bare.stdout.startswith("digest"), bare.stderr
    done = run([*launch, "--no-python", *watch.command(script, plan=check_plan(), folder=tmp_path)])
    assert (done.code, done.stdout) == (0, bare.stdout), done.stderr
    processes = watch.read(tmp_path)
    assert [item.troubles for item in processes] == [[], [], []]
    assert all({"replica", "roster"} <= _kinds(item) for item in processes)


@pytest.mark.slow
def test_own_example_keeps_its_bits(tmp_path: Path) -> None:
    check(EXAMPLES / "digits.py", folder=tmp_path)
