"""Resuming: the same bits, or a refusal that names what differs."""

import contextlib
import errno
import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD

import truestep as ts
from tests.run.train.small import data, net, tracked, train, train_on
from truestep.errors import DifferentRun, FolderInUse, StateError, TruestepError, UsageError
from truestep.record import read, read_steps
from truestep.run.train.lock import FolderLock


@pytest.mark.parametrize("stop_at", [1, 5, 6, 13, 19])
@pytest.mark.practice("P54")
def test_resume_gives_same_bits(tmp_path: Path, stop_at: int) -> None:
    """A run that was stopped and resumed ends with bit-for-bit the weights of one that was not."""
    whole = train(tmp_path / "whole")
    train(tmp_path / "cut", stop_at=stop_at)
    assert train(tmp_path / "cut") == whole


def test_a_finished_run_does_nothing_and_still_has_its_weights(tmp_path: Path) -> None:
    first = train(tmp_path)
    recorded = (tmp_path / "record.jsonl").read_bytes()
    assert train(tmp_path) == first
    assert (tmp_path / "record.jsonl").read_bytes() == recorded


def test_a_finished_run_that_gets_more_steps_is_a_start_in_the_record(tmp_path: Path) -> None:
    train(tmp_path)
    train(tmp_path, num_steps=25)
    starts = [event["cursor"] for event in read(tmp_path / "record.jsonl") if event["kind"] == "start"]
    assert starts == [0, 20] and len(read_steps(tmp_path / "record.jsonl")) == 25


def test_the_record_tells_each_step_once(tmp_path: Path) -> None:
    train(tmp_path / "whole")
    train(tmp_path / "cut", stop_at=13)
    train(tmp_path / "cut")
    whole, cut = (read_steps(tmp_path / name / "record.jsonl") for name in ("whole", "cut"))
    assert list(cut) == list(range(20))
    assert [cut[step]["loss"] for step in cut] == [whole[step]["loss"] for step in whole]
    assert all(values["grad_norm"] > 0 for values in cut.values())


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"threads": 2}, "threads: 1 when saved, 2 now"),
        ({"seed": 2}, "seed: 1 when saved, 2 now"),
        ({"lanes": 4}, "lanes: 2 when saved, 4 now"),
        ({"batch_size": 10}, "batch_size: 16 when saved, 10 now"),
        ({"num_samples": 49}, "num_samples: 50 when saved, 49 now"),
    ],
    ids=lambda value: value.split(":")[0] if isinstance(value, str) else "",
)
def test_resuming_on_something_else_is_refused_by_name_and_accepted_by_name(
    tmp_path: Path, change: dict[str, Any], field: str
) -> None:
    train(tmp_path, stop_at=10)
    with pytest.raises(DifferentRun, match=field):
        train(tmp_path, **change)
    name = field.split(":", maxsplit=1)[0]
    train(tmp_path, **change, accept=[name])
    breaks = [event for event in read(tmp_path / "record.jsonl") if event["kind"] == "lineage"]
    assert breaks[0]["field"] == name
    manifest = json.loads(max((tmp_path / "snapshots").glob("step-*/manifest.json")).read_text())
    assert manifest["facts"]["lineage"][0]["field"] == name


def test_another_torch_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tmp_path, stop_at=10)
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    with pytest.raises(DifferentRun, match=r"torch: 2\.1.* when saved, 2\.99\.0 now"):
        train(tmp_path)


def test_the_witness_catches_a_change_that_no_field_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path, stop_at=11)
    linear = F.linear

    def other_kernel(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return linear(x, weight, bias) * (1 + 2**-23)

    monkeypatch.setattr(F, "linear", other_kernel)
    before = sorted((tmp_path / "snapshots").iterdir())
    with pytest.raises(
        DifferentRun, match=r"first lane's gradient at step 10 has other bits.*accept=\['witness'\]"
    ):
        train(tmp_path)
    assert sorted((tmp_path / "snapshots").iterdir()) == before
    train(tmp_path, accept=["witness"])
    assert "witness" in [event.get("field") for event in read(tmp_path / "record.jsonl")]


def test_phases_go_on_where_they_stopped(tmp_path: Path) -> None:
    def phases(folder: Path, stop_at: int | None) -> str:
        snapshots = ts.Snapshots(every_steps=3)
        stopped = contextlib.suppress(InterruptedError)
        with stopped, ts.Run(folder, seed=1, progress=False, snapshots=snapshots) as run:
            model, optimizer = tracked(run)
            for loader in (ts.Loader(data(), batch_size=16), ts.Loader(data(30), batch_size=8)):
                for _ in range(2):
                    train_on(run, model, optimizer, loader=loader, stop_at=stop_at, epochs=1)
            return ts.digest_state(model.state_dict()) + f" {run.cursor}"
        return ""

    whole = phases(tmp_path / "whole", None)
    assert whole.endswith(" 16")
    for stop_at in (2, 4, 7, 10, 14):
        folder = tmp_path / f"cut{stop_at}"
        phases(folder, stop_at)
        assert phases(folder, None) == whole


def test_code_between_phases_does_not_change_the_state_that_a_later_phase_resumes_with(
    tmp_path: Path,
) -> None:
    def phases(folder: Path, fail_at: int | None) -> str:
        with ts.Run(folder, seed=1, progress=False, snapshots=ts.Snapshots(every_steps=3)) as run:
            model = run.place(net())
            optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
            run.track(model=model, optimizer=optimizer)
            for _ in range(3):
                train_on(run, model, optimizer, stop_at=fail_at, steps=5)
                for group in optimizer.param_groups:
                    group["lr"] *= 0.1
                for state in optimizer.state.values():
                    state["momentum_buffer"].mul_(0.5)
                with torch.no_grad():
                    model[0].weight += torch.rand(())
            return ts.digest_state([model.state_dict(), optimizer.state_dict()])

    whole = phases(tmp_path / "whole", None)
    for fail_at in (3, 5, 7, 12):
        with pytest.raises(InterruptedError):
            phases(tmp_path / f"{fail_at}", fail_at)
        assert phases(tmp_path / f"{fail_at}", None) == whole


def test_parameters_that_are_added_between_phases_resume(tmp_path: Path) -> None:
    def unfreeze(folder: Path, fail_at: int | None, adds: bool = True) -> str:
        with ts.Run(folder, seed=1, progress=False, snapshots=ts.Snapshots(every_steps=2)) as run:
            model = run.place(net())
            optimizer = SGD(model[0].parameters(), lr=0.1, momentum=0.9)
            run.track(model=model, optimizer=optimizer)
            for phase in range(3):
                if phase == 1 and adds:
                    optimizer.add_param_group({"params": model[3].parameters(), "lr": 0.01})
                train_on(run, model, optimizer, stop_at=fail_at, steps=3)
            return ts.digest_state([model.state_dict(), optimizer.state_dict()])

    whole = unfreeze(tmp_path / "whole", None)
    for fail_at in (3, 5, 8):
        with pytest.raises(InterruptedError):
            unfreeze(tmp_path / f"{fail_at}", fail_at)
        assert unfreeze(tmp_path / f"{fail_at}", None) == whole
    with pytest.raises(InterruptedError):
        unfreeze(tmp_path / "forgotten", 8)
    with pytest.raises(StateError, match="optimizer cannot take the state saved at step 8"):
        unfreeze(tmp_path / "forgotten", None, adds=False)


def test_one_loop_over_epochs_equals_a_loop_per_epoch(tmp_path: Path) -> None:
    def loop(folder: Path, phases: list[int]) -> str:
        with ts.Run(folder, seed=1, progress=False) as run:
            model, optimizer = tracked(run)
            loader = ts.Loader(data(), batch_size=16)
            for epochs in phases:
                train_on(run, model, optimizer, loader=loader, epochs=epochs)
            return ts.digest_state(model.state_dict())

    assert loop(tmp_path / "a", [3]) == loop(tmp_path / "b", [1, 1, 1])


def test_leaving_a_loop_at_an_epochs_end_is_the_same_as_ending_it(tmp_path: Path) -> None:
    def loop(folder: Path, leaves: bool) -> tuple[str, list[float]]:
        draws = []
        with ts.Run(folder, seed=1, lanes=2, progress=False) as run:
            model, optimizer = tracked(run)
            loader = ts.Loader(data(), batch_size=16)
            for _ in range(3):
                for step in run.steps(loader, epochs=2 if leaves else 1):
                    for x, y in step:
                        if step.is_epoch_end or draws:  # it is noticed in the step that is left
                            draws.append(random.random())
                        step.backward(F.cross_entropy(model(x), y))
                    step.update(optimizer)
                    if leaves and step.is_epoch_end:
                        break
            return ts.digest_state(model.state_dict()), draws

    assert loop(tmp_path / "a", True) == loop(tmp_path / "b", False)


def test_another_set_of_tracked_objects_is_refused(tmp_path: Path) -> None:
    train(tmp_path, stop_at=10)
    with ts.Run(tmp_path, seed=1, lanes=2, progress=False) as run:
        model = run.place(net())
        optimizer = torch.optim.AdamW(model.parameters())
        run.track(network=model, optimizer=optimizer)
        with pytest.raises(StateError, match="not in the snapshot: network; not tracked now: model"):
            run.steps(ts.Loader(data(), batch_size=16), steps=20)


def test_a_model_of_another_shape_is_refused_by_name(tmp_path: Path) -> None:
    train(tmp_path, stop_at=10)
    wider = nn.Sequential(nn.Linear(6, 17), nn.ReLU(), nn.Dropout(0.2), nn.Linear(17, 3))
    with pytest.raises(StateError, match=r"(?s)model cannot take the state saved.* its own folder\.$"):
        train(tmp_path, model=wider)


def test_what_has_no_state_cannot_be_tracked(tmp_path: Path) -> None:
    with ts.Run(tmp_path, seed=1, progress=False) as run:
        with pytest.raises(UsageError, match=r"run.track\(scheduler=...\) needs an object with state_dict"):
            run.track(scheduler=3)
        with pytest.raises(UsageError, match="nothing is tracked"):
            run.steps(ts.Loader(data(), batch_size=16), steps=2)


@pytest.mark.cold
def test_a_second_process_is_refused_with_the_first_ones_pid(tmp_path: Path) -> None:
    script = (
        f"import truestep as ts, sys; ts.Run({str(tmp_path)!r}, seed=1); "
        "print('ready', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as first:
        assert first.stdout is not None and first.stdout.readline() == b"ready\n"
        with pytest.raises(FolderInUse, match=rf"in use by process {first.pid}\."):
            ts.Run(tmp_path, seed=1, progress=False)
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
    ts.Run(tmp_path, seed=1, progress=False).close()


def _is_locked_for_others(folder: Path) -> bool:
    script = f"import fcntl; fcntl.lockf(open({str(folder / 'lock')!r}, 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode != 0


def test_a_second_run_of_one_process_is_refused_until_the_first_is_closed(tmp_path: Path) -> None:
    with ts.Run(tmp_path, seed=1, progress=False):
        with pytest.raises(FolderInUse, match=r"another Run of this process. Call its close\(\) first"):
            ts.Run(tmp_path, seed=1, progress=False)
        assert _is_locked_for_others(tmp_path), "who was refused must not give the folder free"
    assert not _is_locked_for_others(tmp_path)
    ts.Run(tmp_path, seed=1, progress=False).close()


def test_a_run_that_could_not_begin_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(TruestepError, match="is damaged"):
        ts.Run(tmp_path, seed=1, progress=False)
    (tmp_path / "run.json").unlink()
    ts.Run(tmp_path, seed=1, progress=False).close()


def test_a_file_system_without_locks_is_not_called_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", refuse)
    num_open = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match="No locks available"):
        FolderLock(tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) == num_open


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _of_another_run(folder: Path) -> None:
    train(folder.parent.parent.parent / "other", stop_at=16)
    other = folder.parent.parent.parent / "other/snapshots" / folder.name / "manifest.json"
    (folder / "manifest.json").write_bytes(other.read_bytes())


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("exploded",)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: os.truncate(folder / "tensors.safetensors", 100), "truncated"),
        (lambda folder: _flip(folder / "tensors.safetensors"), "tensors.safetensors"),
        (lambda folder: _flip(folder / "manifest.json"), "manifest.json"),
        (lambda folder: (folder / "tensors.safetensors").unlink(), "missing"),
        (_of_another_run, "belongs to run"),
        (lambda folder: torch.save(_Bomb(), folder / "tensors.safetensors"), "tensors.safetensors"),
        (lambda folder: torch.save(_Bomb(), folder / "model.pt"), "model.pt"),
    ],
    ids=[
        "truncated",
        "flipped",
        "manifest flipped",
        "file missing",
        "of another run",
        "pickle instead",
        "pickle beside",
    ],
)
def test_a_damaged_snapshot_is_named_and_the_one_before_it_is_used(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    damage: Callable[[Path], None],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = train(tmp_path / "whole")
    train(tmp_path / "cut", stop_at=16)
    damage(tmp_path / "cut/snapshots/step-000000000015")
    capfd.readouterr()
    assert train(tmp_path / "cut") == whole
    said = [line for line in capfd.readouterr().err.splitlines() if "damaged snapshot" in line]
    assert len(said) == 1 and words in said[0] and "step-000000000015" in said[0]
    starts = [event["cursor"] for event in read(tmp_path / "cut/record.jsonl") if event["kind"] == "start"]
    assert starts == [0, 10]
    assert not Path("exploded").exists()


@pytest.mark.parametrize("stop_at", [3, 6, 7, 8, 9, 14])
@pytest.mark.practice("P59")
def test_draws_from_python_and_numpy_in_the_loop_resume_exactly(tmp_path: Path, stop_at: int) -> None:
    """Draws from Python's and NumPy's generators in the loop continue exactly after a resume."""

    def mixed(folder: Path, stop_at: int | None) -> str:
        snapshots = ts.Snapshots(every_steps=1)
        stopped = contextlib.suppress(InterruptedError)
        with stopped, ts.Run(folder, seed=1, lanes=2, progress=False, snapshots=snapshots) as run:
            model, optimizer = tracked(run)
            for step in run.steps(ts.Loader(data(), batch_size=16), steps=18):
                if step.index == stop_at:
                    raise InterruptedError
                for x, y in step:
                    is_mixed = step.index >= 7  # the first use comes late: what came before must not matter
                    noise = float(numpy.random.beta(2, 2)) + random.gauss(0, 1) if is_mixed else 0.0
                    step.backward(F.cross_entropy(model(x + noise), y))
                step.update(optimizer)
            return ts.digest_state(model.state_dict())
        return ""

    whole = mixed(tmp_path / "whole", None)
    mixed(tmp_path / "cut", stop_at)
    assert mixed(tmp_path / "cut", None) == whole


def test_a_snapshot_without_a_witness_is_reported_and_gets_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = train(tmp_path / "whole")
    train(tmp_path / "cut", stop_at=12)
    witness = tmp_path / "cut/snapshots/step-000000000010.witness.json"
    left = witness.read_bytes()
    witness.unlink()
    capfd.readouterr()
    train(tmp_path / "cut", stop_at=12)
    assert "step 10 is unverified" in capfd.readouterr().err
    assert [
        event["cursor"] for event in read(tmp_path / "cut/record.jsonl") if event["kind"] == "unverified"
    ] == [10]
    assert witness.read_bytes() == left
    assert train(tmp_path / "cut") == whole
    assert "unverified" not in capfd.readouterr().err


def test_a_step_after_the_end_of_a_loop_is_reported_as_unverified(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def phases(fail_at: int | None) -> None:
        stopped = contextlib.suppress(InterruptedError)
        snapshots = ts.Snapshots(every_steps=3)
        with stopped, ts.Run(tmp_path, seed=1, progress=False, snapshots=snapshots) as run:
            model, optimizer = tracked(run)
            for _ in range(2):
                train_on(run, model, optimizer, stop_at=fail_at, steps=3)

    phases(4)
    assert "unverified" not in capfd.readouterr().err
    phases(None)
    assert "step 3 is unverified" in capfd.readouterr().err
    phases(None)
    assert "unverified" not in capfd.readouterr().err


@pytest.mark.parametrize("loss", ["run.json gone", "run.json of another run", "all snapshots damaged"])
def test_a_run_never_starts_over_beside_its_snapshots(tmp_path: Path, loss: str) -> None:
    train(tmp_path, stop_at=12)
    if loss == "run.json gone":
        (tmp_path / "run.json").unlink()
        words = r"run.json is missing.*newest is step-000000000010.*new folder"
    elif loss == "run.json of another run":
        (tmp_path / "run.json").write_text('{"format": "truestep-run", "version": 1, "id": "other"}')
        words = r"(?s)none of this run's snapshots.*belongs to run.*new folder"
    else:
        for manifest in tmp_path.glob("snapshots/*/manifest.json"):
            _flip(manifest)
        words = r"(?s)none of this run's snapshots.*manifest.json is torn.*new folder"
    before = sorted(path for path in tmp_path.rglob("*") if path.name != "lock")
    with pytest.raises(TruestepError, match=words):
        train(tmp_path)
    assert sorted(path for path in tmp_path.rglob("*") if path.name != "lock") == before


@pytest.mark.parametrize("fate", ["deleted", "moved", "replaced"])
@pytest.mark.parametrize("in_background", [False, True])
@pytest.mark.parametrize("last", [5, 7])  # while the witness of a snapshot is left, and later
def test_a_run_stops_when_its_folder_is_gone(
    tmp_path: Path, fate: str, in_background: bool, last: int
) -> None:
    folder = tmp_path / "run"
    snapshots = ts.Snapshots(every_steps=5, in_background=in_background)

    def lose(index: int) -> None:
        if index == last and fate == "deleted":
            while folder.exists():  # a snapshot that is being written may come between
                shutil.rmtree(folder, ignore_errors=True)
        elif index == last:
            folder.rename(tmp_path / "moved")
            if fate == "replaced":
                # Without what a save in the background is writing meanwhile.
                ignored = shutil.ignore_patterns(".tmp-*")
                shutil.copytree(tmp_path / "moved", folder, ignore=ignored)

    with pytest.raises(TruestepError, match=r"run was deleted, moved or replaced.*training stops"):
        train(folder, on_step=lose, snapshots=snapshots)
    assert fate == "replaced" or not folder.exists()
    if fate == "moved":
        assert train(tmp_path / "moved") == train(tmp_path / "whole")


def test_a_run_stays_in_its_folder_when_the_script_changes_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    train(Path("run"), on_step=lambda index: os.chdir(tmp_path / "elsewhere"))
    assert not (tmp_path / "elsewhere/run").exists()
    assert (tmp_path / "run/snapshots/step-000000000020").is_dir()


def test_a_run_that_was_left_early_is_finished_until_continuing_is_accepted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = train(tmp_path / "whole")
    left = train(tmp_path / "left", leave_at=12)
    assert left not in ("", whole)
    for _ in range(3):  # the first of them computes the steps after the snapshot again
        capfd.readouterr()
        assert train(tmp_path / "left") == left
        assert "left the loop early, after step 13. To continue" in capfd.readouterr().err
    assert train(tmp_path / "left", accept=["stopped"]) == whole
    assert "stopped" in [event.get("field") for event in read(tmp_path / "left/record.jsonl")]
    assert train(tmp_path / "left") == whole


@pytest.mark.cold  # Python itself notes which exception ended a script
@pytest.mark.parametrize("fails", [False, True])
def test_a_script_that_ends_after_a_break_is_finished_and_one_that_fails_is_not(
    tmp_path: Path, fails: bool
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch, truestep as ts\n"
        "run = ts.Run('run', seed=1, threads=1, progress=False, snapshots=ts.Snapshots(every_steps=2))\n"
        "model = run.place(torch.nn.Linear(2, 1))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "run.track(model=model, optimizer=optimizer)\n"
        "for step in run.steps(ts.Loader(torch.ones(40, 2), batch_size=4), steps=8):\n"
        "    for x in step:\n"
        "        step.backward(model(x).pow(2).mean())\n"
        "    step.update(optimizer)\n"
        "    if step.index == 4 and sys.argv[1:]:\n"
        "        break\n"
        f"assert not (sys.argv[1:] and {fails})\n"
        "print(run.cursor)\n"
    )
    subprocess.run([sys.executable, script, "leave"], cwd=tmp_path, capture_output=True, check=not fails)
    again = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, check=True, text=True)
    assert again.stdout == ("8\n" if fails else "5\n")
    assert ("left the loop early" in again.stderr) is not fails


def test_an_early_end_of_a_phase_holds_when_the_next_one_left_no_snapshot(tmp_path: Path) -> None:
    def phases(folder: Path, patience: int | None, stop_at: int | None) -> str:
        snapshots = ts.Snapshots(every_steps=3, every_s=None)
        stopped = contextlib.suppress(InterruptedError)
        with stopped, ts.Run(folder, seed=1, progress=False, snapshots=snapshots) as run:
            model, optimizer = tracked(run)
            for _ in range(2):
                for step in run.steps(ts.Loader(data(), batch_size=16), steps=8):
                    if step.index == stop_at:
                        raise InterruptedError
                    for x, y in step:
                        step.backward(F.cross_entropy(model(x), y))
                    step.update(optimizer)
                    if step.index == patience:
                        break
            return ts.digest_state(model.state_dict()) + f" {run.cursor}"
        return ""

    whole = phases(tmp_path / "whole", 4, None)
    assert whole.endswith(" 13")
    phases(tmp_path / "cut", 4, 5)
    assert phases(tmp_path / "cut", None, None) == whole  # patience is lost, as untracked state is
