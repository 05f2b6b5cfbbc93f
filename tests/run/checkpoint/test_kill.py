"""A process killed at any system call of a save, an attachment or a cleaning leaves a good snapshot."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from truestep.base.bits import digest_state
from truestep.run.checkpoint import Snapshot, Store
from truestep.run.checkpoint.snapshot import TENSORS

# Python 3.12 warns of fork in a process with threads; these children touch no thread of the parent.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

Make = Callable[[int], Snapshot]


def prepare(folder: Path, make_snapshot: Make) -> None:
    store = Store(folder, run_id="run-a")
    for cursor in (5, 10):
        store.save(make_snapshot(cursor))
        store.attach(cursor, "witness", value=cursor)


def prepare_damaged(folder: Path, make_snapshot: Make) -> None:
    prepare(folder, make_snapshot)
    store = Store(folder, run_id="run-a", keep=3)
    store.save(make_snapshot(20))
    store.attach(20, "witness", value="of the damaged one")
    os.truncate(folder / "step-000000000020" / TENSORS, 100)


def prepare_leftovers(folder: Path, make_snapshot: Make) -> None:
    prepare(folder, make_snapshot)
    shutil.copytree(folder / "step-000000000005", folder / ".trash-1-0")
    shutil.copytree(folder / "step-000000000005", folder / ".tmp-1-0")
    shutil.copy(folder / "step-000000000005.witness.json", folder / "step-000000000003.witness.json")


SCENES: dict[str, tuple[Callable[[Path, Make], None], Callable[[Store, Make], Any]]] = {
    "save": (prepare, lambda store, make: store.save(make(20))),
    "replace a damaged one": (prepare_damaged, lambda store, make: store.save(make(20))),
    "attach": (prepare, lambda store, make: store.attach(10, "witness", value=11)),
    "clean": (prepare_leftovers, lambda store, make: store.clean()),
}


def check_survivor(folder: Path, make_snapshot: Make) -> None:
    """What a kill must leave: cursor 10 or 20 complete, nothing else after cleaning, and saving goes on."""
    store = Store(folder, run_id="run-a")
    loaded, damages = store.load_newest()
    assert loaded is not None and loaded.cursor in (10, 20)
    assert digest_state(loaded.states) == digest_state(make_snapshot(loaded.cursor).states)
    assert all(damage.path.name == "step-000000000020" and "truncated" in damage.reason for damage in damages)
    assert store.attached(10, "witness") in (10, 11)
    assert store.attached(20, "witness") in (None, "of the damaged one")
    store.clean()
    names = [path.name for path in folder.iterdir()]
    assert not [name for name in names if name.startswith(".")]
    assert not [name for name in names if name.endswith(".json") and name.split(".")[0] not in names]
    store.save(make_snapshot(20))
    loaded, damages = store.load_newest()
    assert loaded is not None and loaded.cursor == 20 and damages == []
    store.save(make_snapshot(30))
    assert sorted(path.name for path in folder.iterdir()) == ["step-000000000020", "step-000000000030"]


@pytest.mark.parametrize("name", SCENES)
def test_killed_at_every_system_call_a_good_snapshot_remains(
    name: str, tmp_path: Path, make_snapshot: Make, run_in_child: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A killed process loses nothing that it gave to the system, flushed or not; the call stays a kill point.
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    prepare_scene, act = SCENES[name]
    original = tmp_path / "original"
    prepare_scene(original, make_snapshot)
    folder = tmp_path / "counted"
    shutil.copytree(original, folder)
    status, calls = run_in_child(lambda: act(Store(folder, run_id="run-a"), make_snapshot))
    assert status == 0 and calls
    check_survivor(folder, make_snapshot)
    points = [(index, how) for index in range(len(calls)) for how in ("before", "after")]
    points += [(index, "halfway") for index, call in enumerate(calls) if call == "write"]
    print(f"{name}: {len(calls)} changing calls, {len(points)} kill points")
    for index, how in points:
        folder = tmp_path / f"{index}-{how}"
        shutil.copytree(original, folder)
        status, _ = run_in_child(lambda at=folder: act(Store(at, run_id="run-a"), make_snapshot), index, how)
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, (index, how, calls)
        check_survivor(folder, make_snapshot)
        shutil.rmtree(folder)


def test_everything_is_flushed_before_it_is_published(
    tmp_path: Path, make_snapshot: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut can undo what was not flushed: files, then their folder, then the name, then the parent."""
    folder = tmp_path / "snapshots"
    prepare(folder, make_snapshot)
    events: list[str] = []
    fsync, rename, unlink = os.fsync, os.rename, os.unlink

    def spy_fsync(descriptor: int) -> None:
        fsync(descriptor)
        events.append(f"flush {Path(f'/proc/self/fd/{descriptor}').readlink().name.split('-')[0]}")

    def spy_rename(source: Any, target: Any) -> None:
        events.append(f"rename to {Path(target).name.split('-')[0]}")
        rename(source, target)

    def spy_unlink(*args: Any, **kwargs: Any) -> None:
        events.append("unlink")
        unlink(*args, **kwargs)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "rename", spy_rename)
    monkeypatch.setattr(os, "unlink", spy_unlink)
    Store(folder, run_id="run-a").save(make_snapshot(20))
    publish = [
        "flush tensors.safetensors",
        "flush manifest.json",
        "flush .tmp",
        "rename to step",
        "flush snapshots",
    ]
    prune = ["rename to .trash", "flush snapshots", "unlink", "unlink", "unlink"]
    assert events == publish + prune
