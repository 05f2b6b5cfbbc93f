"""A disk that fails, or loses its power, at any operation leaves a good snapshot and an error of ours."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.faults import Disk, Fault, all_faults, build, folder_in_memory, some_faults
from tests.run.checkpoint import conftest
from tests.run.checkpoint.test_kill import prepare, prepare_damaged, prepare_leftovers
from truestep.base.bits import digest_state
from truestep.errors import SaveFailed, TruestepError
from truestep.run.checkpoint import BackgroundSaver, Crew, Snapshot, Store, pack
from truestep.run.checkpoint.parts import Part

make_snapshot = conftest.make_snapshot


def make_together(cursor: int) -> Snapshot:
    """A snapshot of which one tensor is spread over the processes, as FSDP2 gives it."""
    states = conftest.make_states(cursor)
    weight = states["model"]["weight"]
    layout: dict[str, Any] = {"shape": tuple(weight.shape), "stride": tuple(weight.stride())}
    states["model"]["weight"] = states["model"]["tied"] = Part(local=weight, offsets=(0, 0), **layout)
    return Snapshot(cursor=cursor, states=states, facts=make_snapshot(cursor).facts)


def save_together(store: Store) -> None:
    """What each process does; here there is one, because a group of several is another test's matter."""
    snapshot = make_together(20)
    store._save_together(snapshot, pack(snapshot.states))


def save_two(store: Store, tell: Callable[[int], None]) -> None:
    for cursor in (20, 30):
        store.save(make_snapshot(cursor))
        tell(cursor)


@dataclass(frozen=True)
class Scene:
    """Something that changes a folder of snapshots."""

    prepare: Callable[[Path], None]
    act: Callable[[Store, Callable[[int], None]], Any]
    least: int | None = 10
    """The oldest snapshot that may be left."""


def _prepared(how: Callable[..., None]) -> Callable[[Path], None]:
    return lambda folder: how(folder, make_snapshot)


SCENES = {
    "the first ones": Scene(lambda folder: None, save_two, least=None),
    "save": Scene(_prepared(prepare), lambda store, tell: (store.save(make_snapshot(20)), tell(20))),
    "replace a damaged one": Scene(
        _prepared(prepare_damaged), lambda store, tell: (store.save(make_snapshot(20)), tell(20))
    ),
    "attach": Scene(
        _prepared(prepare), lambda store, tell: (store.attach(10, "witness", value=11), tell(11))
    ),
    "clean": Scene(_prepared(prepare_leftovers), lambda store, tell: store.clean()),
    "together": Scene(_prepared(prepare), lambda store, tell: (save_together(store), tell(20))),
}


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield folder


@pytest.fixture(autouse=True)
def unflushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no real disk be waited for: `Disk` notes what is flushed, and does not ask the real one."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(autouse=True)
def group(request: pytest.FixtureRequest) -> Iterator[None]:
    """A group of one process, which saving together needs."""
    if "together" not in request.node.name:
        yield
        return
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def make_store(folder: Path) -> Store:
    return Store(folder, run_id="run-a", crew=Crew())


def find(folder: Path, scene: Scene, told: list[int]) -> Store:
    """Check what a new process finds: the newest that was acknowledged or a newer one, whole."""
    store = make_store(folder)
    loaded, damages = store.load_newest()
    cursor = loaded.cursor if loaded is not None else None
    least = max([cursor for cursor in told if cursor != 11], default=scene.least)
    assert (cursor or 0) >= (least or 0), f"{cursor} loaded, {least} was saved"
    if loaded is not None:
        assert digest_state(loaded.states) == digest_state(make_snapshot(loaded.cursor).states)
        if loaded.cursor > 10:
            assert store.attached(loaded.cursor, "witness") is None, "it is of the one that was damaged"
    was_damaged = scene is SCENES["replace a damaged one"]
    named = [damage for damage in damages if not (was_damaged and "has 100 bytes" in damage.reason)]
    assert named == []
    if scene.least is not None:
        assert store.attached(10, "witness") in ([11] if 11 in told else [10, 11])
    return store


def go_on(store: Store, folder: Path) -> None:
    """Save, clean up and save again: nothing that was left behind may be in the way."""
    store.save(make_snapshot(30))
    loaded, damages = make_store(folder).load_newest()
    assert loaded is not None and loaded.cursor == 30 and damages == []
    assert digest_state(loaded.states) == digest_state(make_snapshot(30).states)
    store.clean()
    names = [path.name for path in folder.iterdir()]
    assert not [name for name in names if name.startswith(".")]
    assert not [name for name in names if name.endswith(".json") and name.split(".")[0] not in names]
    store.save(make_snapshot(40))
    assert sorted(path.name for path in folder.iterdir()) == ["step-000000000030", "step-000000000040"]


@pytest.fixture
def original(tmp_path: Path, scene: str) -> Path:
    (tmp_path / "original").mkdir()
    SCENES[scene].prepare(tmp_path / "original" / "run" / "snapshots")
    return tmp_path / "original"


def act(root: Path, scene: Scene, fault: Fault | None = None) -> tuple[Disk, Store, BaseException | None]:
    store = make_store(root / "run" / "snapshots")
    failed = None
    with Disk(root, fault, is_checked=fault is None) as disk:
        try:
            scene.act(store, disk.acknowledge)
        except TruestepError as error:
            failed = error
    return disk, store, failed


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("faults_of", [some_faults, pytest.param(all_faults, marks=pytest.mark.slow)])
def test_whatever_operation_fails_the_snapshots_before_it_are_good(
    scene: str, faults_of: Any, original: Path, tmp_path: Path
) -> None:
    root = shutil.copytree(original, tmp_path / "counted")
    disk, _, failed = act(root, SCENES[scene])
    assert failed is None
    faults = faults_of(disk.operations)
    print(f"{scene}: {len(disk.operations)} operations, {len(faults)} faults")
    for fault in faults:
        root = shutil.copytree(original, tmp_path / f"{fault.at} {fault.how}")
        failing, store, failed = act(root, SCENES[scene], fault)
        told = [what for _, what in failing.acknowledged]
        try:
            assert failed is not None or told == [what for _, what in disk.acknowledged]
            if isinstance(failed, SaveFailed):
                assert "Earlier snapshots are intact" in str(failed)
            if fault.how == "short":
                assert failed is None, "a short write is no failure: the rest is written next"
            find(root / "run" / "snapshots", SCENES[scene], told)
            go_on(store, root / "run" / "snapshots")
        except (AssertionError, TruestepError, OSError) as error:
            error.add_note(f"{fault} ({disk.operations[fault.at]}): {failed!r}")
            raise
        shutil.rmtree(root)


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("num_seeds", [2, pytest.param(40, marks=pytest.mark.slow)])
def test_whenever_the_power_goes_a_good_snapshot_is_left(
    scene: str, num_seeds: int, original: Path, tmp_path: Path
) -> None:
    disk, _, _ = act(shutil.copytree(original, tmp_path / "counted"), SCENES[scene])
    num_cuts = 0
    for num, variant, tree in disk.power_cuts(seeds=range(num_seeds)):
        root = build(tree, tmp_path / f"{num} {variant}")
        try:
            store = find(root / "run" / "snapshots", SCENES[scene], disk.told_by(num))
            go_on(store, root / "run" / "snapshots")
        except (AssertionError, TruestepError, OSError) as error:
            error.add_note(f"{variant}, after {num} operations, before: {disk.operations[num : num + 1]}")
            raise
        shutil.rmtree(root)
        num_cuts += 1
    print(f"{scene}: {len(disk.operations)} operations, {num_cuts} power cuts")


def test_a_saved_snapshot_does_not_count_as_lost_because_an_older_one_cannot_be_removed(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run" / "snapshots"
    prepare(folder, make_snapshot)
    copy = shutil.copytree(tmp_path, tmp_path.with_name(f"{tmp_path.name} counted"))
    disk, _, _ = act(copy, SCENES["save"])
    at = next(
        index for index, operation in enumerate(disk.operations) if "to run/snapshots/.trash" in operation
    )
    with Disk(tmp_path, Fault(at, "refuse")):
        saver = BackgroundSaver(make_store(folder))
        saver.submit(make_snapshot(20))
        with pytest.raises(SaveFailed, match="was written, but older ones could not be removed"):
            saver.wait()
    assert saver.lost is None
    saver.attach(20, "witness", value=1)
    saver.close()
    assert make_store(folder).attached(20, "witness") == 1
