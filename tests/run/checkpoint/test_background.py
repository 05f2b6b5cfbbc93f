"""Saving in the background loses nothing: not the state at submit, not a failure, not the last save."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from truestep.base.bits import digest_state
from truestep.errors import SaveFailed, StateError
from truestep.run.checkpoint import BackgroundSaver, Snapshot, Store

Make = Callable[[int], Snapshot]


class SlowStore(Store):
    """A store whose saves wait for the test."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, run_id="run-a")
        self.may_save = threading.Event()

    def save(self, snapshot: Snapshot) -> Path:
        assert self.may_save.wait(timeout=30)
        return super().save(snapshot)


def test_what_is_saved_is_the_state_at_submit(folder: Path, make_snapshot: Make) -> None:
    store = SlowStore(folder)
    saver = BackgroundSaver(store)
    snapshot = make_snapshot(10)
    expected = digest_state(snapshot.states)
    assert not saver.is_busy
    saver.submit(snapshot)
    assert saver.is_busy
    snapshot.states["model"]["weight"].zero_()
    snapshot.facts["lineage"].append(99)
    saver.poll()
    store.may_save.set()
    saver.close()
    assert not saver.is_busy
    loaded, _ = store.load_newest()
    assert loaded is not None and digest_state(loaded.states) == expected
    assert loaded.facts["lineage"] == [10]


def test_memory_used_again_does_not_leak_into_the_snapshot_before(folder: Path, make_snapshot: Make) -> None:
    store = Store(folder, run_id="run-a", keep=5)
    saver = BackgroundSaver(store)
    for cursor in range(1, 6):
        saver.submit(make_snapshot(cursor))
    saver.close()
    for cursor in range(5, 0, -1):
        loaded, damages = store.load_newest()
        assert loaded is not None and loaded.cursor == cursor and damages == []
        assert digest_state(loaded.states) == digest_state(make_snapshot(cursor).states)
        (folder / f"step-{cursor:012d}").rename(folder / f".trash-{cursor}")


def test_a_second_submit_waits_for_the_first(folder: Path, make_snapshot: Make) -> None:
    store = SlowStore(folder)
    saver = BackgroundSaver(store)
    saver.submit(make_snapshot(1))
    threading.Timer(0.1, store.may_save.set).start()
    saver.submit(make_snapshot(2))
    assert store.may_save.is_set() and (folder / "step-000000000001").is_dir()
    saver.close()
    assert (folder / "step-000000000002").is_dir()


def test_a_failed_save_is_raised_once(tmp_path: Path, make_snapshot: Make) -> None:
    (tmp_path / "file").write_text("")
    saver = BackgroundSaver(Store(tmp_path / "file" / "snapshots", run_id="run-a"))
    saver.submit(make_snapshot(1))
    with pytest.raises(SaveFailed, match="step-000000000001 could not be written"):
        saver.wait()
    saver.wait()
    saver.submit(make_snapshot(2))
    while saver.is_busy:
        time.sleep(0.001)
    with pytest.raises(SaveFailed, match="step-000000000002 could not be written"):
        saver.poll()
    saver.poll()
    saver.attach(2, "witness", value=1)
    saver.submit(make_snapshot(3))
    with pytest.raises(SaveFailed, match="step-000000000003 could not be written"):
        saver.submit(make_snapshot(4))
    saver.submit(make_snapshot(5))
    with pytest.raises(SaveFailed, match="step-000000000005 could not be written"):
        saver.close()


def test_a_state_that_cannot_be_stored_is_refused_at_submit(store: Store) -> None:
    saver = BackgroundSaver(store)
    with pytest.raises(StateError, match=r"^model\.hook is a function"):
        saver.submit(Snapshot(cursor=1, states={"model": {"hook": lambda: 0}}, facts={}))
    with pytest.raises(StateError, match="facts must be plain JSON"):
        saver.submit(Snapshot(cursor=1, states={}, facts={"a": (1,)}))
    assert not saver.is_busy
    saver.close()


def test_an_attachment_follows_the_save_under_way(folder: Path, make_snapshot: Make) -> None:
    store = SlowStore(folder)
    saver = BackgroundSaver(store)
    saver.submit(make_snapshot(1))
    saver.attach(1, "witness", value={"digest": "ab"})
    assert saver.is_busy and store.attached(1, "witness") is None
    store.may_save.set()
    saver.wait()
    assert store.attached(1, "witness") == {"digest": "ab"}
    saver.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_does_not_wait_for_its_parents_save(
    folder: Path, make_snapshot: Make, run_in_child: Any
) -> None:
    store = SlowStore(folder)
    saver = BackgroundSaver(store)
    saver.submit(make_snapshot(1))

    def in_child() -> None:
        assert not saver.is_busy
        saver.close()

    assert run_in_child(in_child) == (0, [])
    store.may_save.set()
    saver.close()
    assert (folder / "step-000000000001").is_dir()


SCRIPT = """
import sys, time
from pathlib import Path
import torch
from truestep.run.checkpoint import BackgroundSaver, Snapshot, Store

class Slow(Store):
    def save(self, snapshot):
        time.sleep(0.5)
        return super().save(snapshot)

saver = BackgroundSaver(Slow(Path(sys.argv[1]), run_id="run-a"))
saver.submit(Snapshot(cursor=1, states={"w": torch.arange(1000)}, facts={}))
saver.attach(1, "witness", value=5)
"""


def test_a_script_that_ends_without_close_still_finishes_the_last_save(folder: Path, store: Store) -> None:
    subprocess.run([sys.executable, "-c", SCRIPT, str(folder)], check=True, timeout=60)
    loaded, damages = store.load_newest()
    assert loaded is not None and damages == []
    assert torch.equal(loaded.states["w"], torch.arange(1000))
    assert store.attached(1, "witness") == 5
