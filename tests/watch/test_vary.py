"""Other numbers of workers and kills do what they say, and how training is set up is seen at its line."""

import shutil
import sys
from pathlib import Path

import pytest

from tests.watch.watching import SCRIPTS, marked, run, run_bare, run_watched, seen
from truestep import watch
from truestep.watch.evidence.facts.passes import BackwardPass, CompileCalled, ParallelMade

SEEDED = tuple(name for name in watch.DIGESTS if name != "generators")  # those of `random` are not


def line_of(text: str, word: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith(word)]
    return line


@pytest.mark.parametrize("num_workers", [0, 3])
def test_all_loaders_are_built_with_other_workers(tmp_path: Path, num_workers: int) -> None:
    bare = run_bare(SCRIPTS / "loaders.py")
    assert line_of(bare.stdout, "workers") == "workers [0, 1, 1, 1, 1]", bare.stderr
    plan = watch.Plan(workers=num_workers)
    done = run_watched(SCRIPTS / "loaders.py", folder=tmp_path, plan=plan)
    assert line_of(done.stdout, "workers") == f"workers {[num_workers] * 5}", done.stderr
    if num_workers:
        assert line_of(done.stdout, "prefetch") == "prefetch [2, 2, 3, 2, 3]"
        assert line_of(done.stdout, "timeout") == "timeout [0, 0, 60, 0, 60]"
    else:
        assert line_of(done.stdout, "prefetch") == f"prefetch {[None] * 5}"
        assert line_of(done.stdout, "timeout") == f"timeout {[0] * 5}"
    assert line_of(done.stdout, "refused") == line_of(bare.stdout, "refused")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_loaders_with_other_workers_give_the_same_batches(tmp_path: Path, num_workers: int) -> None:
    bare = run_bare(SCRIPTS / "loaders.py", "read")
    plan = watch.Plan(workers=num_workers)
    done = run_watched(SCRIPTS / "loaders.py", "read", folder=tmp_path, plan=plan)
    batches = [line for line in bare.stdout.splitlines() if line.startswith("batches")]
    assert len(batches) == 5
    assert [line for line in done.stdout.splitlines() if line.startswith("batches")] == batches


OURS = """\
import torch
import truestep as ts

run = ts.Run("runs/small", seed=1, progress=False)
model = run.place(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run.track(model=model, optimizer=optimizer)
loader = ts.Loader(torch.ones(16, 4), batch_size=8)
for step in run.steps(loader, epochs=1):
    for x in step:
        step.backward(model(x).pow(2).mean())
    step.update(optimizer)
print(loader.workers, torch.get_num_threads())
"""


def test_settings_beside_a_script_of_ours_leave_the_workers_to_the_plan(tmp_path: Path) -> None:
    (tmp_path / "truestep.toml").write_text("[settings]\nworkers = 2\nthreads = 1\n")
    script = tmp_path / "train.py"
    script.write_text(OURS)
    for plan, told in ((watch.Plan(), "2 1\n"), (watch.Plan(workers=1), "1 1\n")):
        done = run_watched(script, folder=tmp_path, plan=plan, cwd=tmp_path)
        assert done.stdout == told, done.stderr
        shutil.rmtree(tmp_path / "runs")


@pytest.mark.parametrize("optimizer", ["AdamW", "LBFGS"])
def test_killed_after_a_step_and_resumed_from_the_weights_saved(tmp_path: Path, optimizer: str) -> None:
    saved = str(tmp_path / "saved.pt")
    whole, killed, resumed = (tmp_path / name for name in ("whole", "killed", "resumed"))
    for folder in (whole, killed, resumed):
        folder.mkdir()
    script, plan = SCRIPTS / "resumed.py", watch.Plan(digests=SEEDED)
    done = run_watched(script, str(tmp_path / "other.pt"), optimizer, folder=whole, plan=plan)
    kill = watch.Plan(digests=SEEDED, kill_at=5)
    ended = run_watched(script, saved, optimizer, folder=killed, plan=kill)
    assert (ended.code, ended.stdout, ended.stderr) == (-9, "", "")
    again = run_watched(script, saved, optimizer, folder=resumed, plan=plan)
    assert (again.code, again.stdout) == (0, done.stdout)
    (first,), (before,), (after,) = watch.read(whole), watch.read(killed), watch.read(resumed)
    assert (before.num_steps, before.ended, len(before.updates)) == (5, None, 5)
    assert [item.chain for item in before.updates] == [item.chain for item in first.updates[:5]]
    weights = [item.parts["weights"] for item in first.updates]
    assert after.updates[0].before == weights[3]
    assert [item.parts["weights"] for item in after.updates] == weights[4:]
    assert first.updates[0].before not in (None, *weights)
    assert {item.before for item in (*first.updates[1:], *after.updates[1:])} == {None}
    assert all("before" not in item.parts for item in first.updates)


def test_kill_loses_no_moment_without_digests(tmp_path: Path) -> None:
    plan = watch.Plan(kill_at=2, flush_s=600)
    done = run_watched(SCRIPTS / "resumed.py", str(tmp_path / "saved.pt"), "SGD", folder=tmp_path, plan=plan)
    assert done.code == -9
    (process,) = watch.read(tmp_path)
    assert (process.num_steps, process.ended) == (2, None)
    assert len(process.of(BackwardPass)) == 2


def test_of_several_processes_the_first_is_killed(tmp_path: Path) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    plan = watch.Plan(digests=watch.DIGESTS, kill_at=2)
    done = run([*launch, "--no-python", *watch.command(SCRIPTS / "processes.py", plan=plan, folder=tmp_path)])
    assert done.code == 1 and "SIGKILL" in done.stderr
    first, *others = watch.read(tmp_path)
    assert (first.rank, first.num_steps, first.ended) == (0, 2, None)
    assert all(process.num_steps in (1, 2) and process.ended != "finished" for process in others)


def test_settings_are_seen_at_their_lines(tmp_path: Path) -> None:
    script = SCRIPTS / "settings.py"
    bare = run_bare(script)
    done = run_watched(script, folder=tmp_path)
    assert (done.code, done.stdout, done.stderr) == (0, bare.stdout, bare.stderr)
    (process,) = watch.read(tmp_path)
    expected, found = marked(script), seen(process, script)
    assert {kind: found.get(kind) for kind in expected} == expected
    compiled = ["double", "never_called", "triple", "Linear", "Linear", "Linear"]
    assert [moment.facts.what for moment in process.of(CompileCalled)] == compiled


@pytest.mark.cold
def test_parallel_is_seen_at_its_line(tmp_path: Path) -> None:
    script = SCRIPTS / "sharded.py"
    bare = run_bare(script, str(tmp_path / "bare"))
    assert bare.code == 0, bare.stderr
    done = run_watched(script, str(tmp_path / "watched"), folder=tmp_path)
    assert (done.code, done.stdout) == (bare.code, bare.stdout), done.stderr
    (process,) = watch.read(tmp_path)
    expected, found = marked(script), seen(process, script)
    assert {kind: found.get(kind) for kind in expected} == expected
    made = [moment.facts.what for moment in process.of(ParallelMade)]
    assert made == ["DistributedDataParallel", *["fully_shard"] * 3]
