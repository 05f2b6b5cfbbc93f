"""A run on a disk that fails, or loses its power, at any operation: started again, it gives the same bits."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import truestep as ts
from tests.faults import Disk, Fault, all_faults, build, folder_in_memory, some_faults
from truestep import record
from truestep.base.bits import digest_state
from truestep.errors import TruestepError
from truestep.report.runs import read_run
from truestep.run.checkpoint import Store

NUM_STEPS = 3


def train(root: Path) -> str:
    """Train for a few steps in a folder that is made below another one; return the digest of the weights."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    options = ts.Snapshots(every_s=None, every_steps=2, in_background=False)
    with ts.Run(root / "runs" / "a", seed=1, lanes=1, snapshots=options, progress=False) as run:
        run.track(model=model, optimizer=optimizer)
        samples = [torch.tensor([float(number), 1.0]) for number in range(6)]
        for step in run.steps(ts.Loader(samples, batch_size=2), epochs=1):
            for x in step:
                step.backward(model(x).square().mean() + torch.rand(()) * model.weight.sum())
            step.update(optimizer)
    return digest_state(model.state_dict())


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield folder


@pytest.fixture(autouse=True)
def unflushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no real disk be waited for: `Disk` notes what is flushed, and does not ask the real one."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> str:
    return train(tmp_path_factory.mktemp("wanted"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Disk:
    """All that a run does to the disk; a snapshot is acknowledged when `save` returns."""
    root, save = tmp_path_factory.mktemp("counted"), Store.save

    def save_and_tell(store: Store, snapshot: Any) -> Any:
        path = save(store, snapshot)
        disk.acknowledge(snapshot.cursor)
        return path

    with pytest.MonkeyPatch.context() as patched, Disk(root, is_checked=True) as disk:
        patched.setattr(Store, "save", save_and_tell)
        train(root)
    return disk


def resume(root: Path, wanted: str, *, least: int) -> None:
    """Start the run again and check what it gives."""
    folder = root / "runs" / "a"
    path = folder / "record.jsonl"
    before = list(record.read(path)) if path.is_file() else []
    assert train(root) == wanted
    events = list(record.read(path))
    begun = [event["cursor"] for event in events if event["kind"] == "start"]
    if events != before:  # else nothing was left to do
        saved = f"the snapshot of step {least} was saved"
        assert begun[-1] >= least, f"resumed after step {begun[-1]}, but {saved}"
        assert set(range(begun[-1], NUM_STEPS)) <= record.read_steps(path).keys()
    assert begun and events[-1]["kind"] == "end" and events[-1]["cursor"] == NUM_STEPS
    assert not [path for path in (folder / "snapshots").iterdir() if path.name.startswith(".")]
    read_run(folder)


def is_complete(root: Path) -> bool:
    """Whether a run left all that it should have, without any failure."""
    folder = root / "runs" / "a"
    kinds = [event["kind"] for event in record.read(folder / "record.jsonl")]
    newest = max((path.name for path in folder.glob("snapshots/step-*/")), default="")
    is_written = kinds[0] == "start" and kinds[-1] == "end" and "save-failed" not in kinds
    return is_written and newest == f"step-{NUM_STEPS:012d}"


def check_faults(
    faults: list[Fault], disk: Disk, tmp_path: Path, wanted: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for fault in faults:
        root = tmp_path / f"{fault.at} {fault.how}"
        root.mkdir()
        capfd.readouterr()
        failed = None
        try:
            with Disk(root, fault):
                try:
                    assert train(root) == wanted
                except TruestepError as error:  # held until the end: it must hold no lock
                    failed = error
            told = capfd.readouterr().err
            assert failed or "truestep" in told or is_complete(root), "something was lost silently"
            if fault.how == "short":
                assert failed is None
            resume(root, wanted, least=0)
        except (AssertionError, TruestepError, OSError) as error:
            error.add_note(f"{fault} ({disk.operations[fault.at]}): {failed!r}")
            raise
        shutil.rmtree(root)


@pytest.mark.parametrize("faults_of", [some_faults, pytest.param(all_faults, marks=pytest.mark.slow)])
def test_whatever_operation_fails_the_run_says_so_and_can_be_started_again(
    faults_of: Any, trained: Disk, tmp_path: Path, wanted: str, capfd: pytest.CaptureFixture[str]
) -> None:
    faults = faults_of(trained.operations)
    print(f"{len(trained.operations)} operations, {len(faults)} faults")
    check_faults(faults, trained, tmp_path, wanted, capfd)


@pytest.mark.parametrize("num_seeds", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_whenever_the_power_goes_the_run_resumes_to_the_same_bits(
    num_seeds: int, trained: Disk, tmp_path: Path, wanted: str
) -> None:
    num_cuts = 0
    for num, variant, tree in trained.power_cuts(seeds=range(num_seeds)):
        root = build(tree, tmp_path / f"{num} {variant}")
        try:
            resume(root, wanted, least=max(trained.told_by(num), default=0))
        except (AssertionError, TruestepError, OSError) as error:
            error.add_note(f"{variant}, after {num} operations, before: {trained.operations[num : num + 1]}")
            raise
        shutil.rmtree(root)
        num_cuts += 1
    print(f"{len(trained.operations)} operations, {num_cuts} power cuts")
