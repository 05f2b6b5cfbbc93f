"""Snapshots are published complete or not at all; damage is named, never loaded, never unpickled."""

import json
import os
import pickle
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from truestep.base.bits import digest_state
from truestep.errors import SaveFailed, StateError, UsageError
from truestep.run.checkpoint import Snapshot, Store
from truestep.run.checkpoint.durable import write_file
from truestep.run.checkpoint.snapshot import MANIFEST, TENSORS, seal, unseal

Make = Callable[[int], Snapshot]


def step(folder: Path, cursor: int) -> Path:
    return folder / f"step-{cursor:012d}"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def rewrite_manifest(folder: Path, **changes: Any) -> None:
    path = folder / MANIFEST
    path.write_bytes(seal({**unseal(path.read_bytes()), **changes}))


@pytest.fixture
def two(store: Store, make_snapshot: Make) -> Store:
    """A store with good snapshots of cursors 10 and 20."""
    store.save(make_snapshot(10))
    store.save(make_snapshot(20))
    return store


def assert_falls_back(store: Store, reason: str, make_snapshot: Make) -> None:
    loaded, damages = store.load_newest()
    assert loaded is not None and loaded.cursor == 10
    assert digest_state(loaded.states) == digest_state(make_snapshot(10).states)
    assert len(damages) == 1 and damages[0].path.name == "step-000000000020"
    assert re.search(rf"^snapshots/step-000000000020: .*{reason}", damages[0].reason), damages[0].reason
    assert "\n" not in damages[0].reason and str(damages[0]) == damages[0].reason


def test_a_saved_snapshot_comes_back(
    store: Store, folder: Path, make_snapshot: Make, find_difference: Any
) -> None:
    path = store.save(make_snapshot(120))
    assert path == step(folder, 120)
    assert names(path) == [MANIFEST, TENSORS]
    loaded, damages = store.load_newest()
    assert loaded is not None and damages == []
    assert find_difference(loaded.states, make_snapshot(120).states) is None
    assert loaded.facts == make_snapshot(120).facts
    assert loaded.states["model"]["weight"] is loaded.states["model"]["tied"]


def test_the_tensor_file_is_plain_safetensors(store: Store, make_snapshot: Make) -> None:
    from safetensors.torch import load_file

    path = store.save(make_snapshot(1))
    tensors = load_file(path / TENSORS)
    assert torch.equal(tensors["model.weight"], make_snapshot(1).states["model"]["weight"])
    assert "model.tied" not in tensors


def test_the_manifest_is_strict_json_with_the_documented_fields(store: Store, make_snapshot: Make) -> None:
    manifest = json.loads((store.save(make_snapshot(7)) / MANIFEST).read_text())
    fields = ["cursor", "facts", "files", "format", "run", "sha256", "structure", "tensors", "version"]
    assert sorted(manifest) == fields
    assert manifest["format"] == "truestep-snapshot" and manifest["version"] == 1
    assert manifest["tensors"]["model.mask"] == {"file": TENSORS, "shape": [2], "dtype": "bool"}


def test_loaded_tensors_do_not_need_the_file_any_more(
    store: Store, folder: Path, make_snapshot: Make
) -> None:
    path = store.save(make_snapshot(1))
    loaded, _ = store.load_newest()
    os.truncate(path / TENSORS, 0)
    assert loaded is not None
    assert digest_state(loaded.states) == digest_state(make_snapshot(1).states)
    loaded.states["model"]["weight"].zero_()


def test_old_snapshots_go_and_keep_stay(folder: Path, make_snapshot: Make) -> None:
    store = Store(folder, run_id="run-a", keep=3)
    for cursor in range(1, 7):
        store.save(make_snapshot(cursor))
    assert names(folder) == [step(folder, cursor).name for cursor in (4, 5, 6)]


def test_damaged_snapshots_do_not_count_as_kept(two: Store, folder: Path, make_snapshot: Make) -> None:
    os.truncate(step(folder, 20) / TENSORS, 10)
    fresh = Store(folder, run_id="run-a")
    fresh.save(make_snapshot(30))
    shutil.rmtree(step(folder, 30))
    assert_falls_back(fresh, "truncated", make_snapshot)


def test_snapshots_of_other_runs_are_not_deleted(folder: Path, make_snapshot: Make) -> None:
    Store(folder, run_id="run-b").save(make_snapshot(5))
    store = Store(folder, run_id="run-a")
    for cursor in (10, 20, 30):
        store.save(make_snapshot(cursor))
    assert names(folder) == [step(folder, cursor).name for cursor in (5, 20, 30)]


def test_the_one_just_saved_stays_even_if_newer_ones_exist(
    two: Store, folder: Path, make_snapshot: Make
) -> None:
    two.save(make_snapshot(5))
    assert step(folder, 5).is_dir()


def test_a_good_snapshot_of_the_same_cursor_is_left_alone(
    two: Store, folder: Path, make_snapshot: Make
) -> None:
    before = step(folder, 20).stat().st_ino
    two.attach(20, "witness", value="abc")
    two.save(make_snapshot(20))
    assert step(folder, 20).stat().st_ino == before
    assert two.attached(20, "witness") == "abc"


def test_a_damaged_snapshot_of_the_same_cursor_is_replaced(
    two: Store, folder: Path, make_snapshot: Make
) -> None:
    two.attach(20, "witness", value="abc")
    os.truncate(step(folder, 20) / TENSORS, 100)
    two.save(make_snapshot(20))
    loaded, damages = two.load_newest()
    assert loaded is not None and loaded.cursor == 20 and damages == []
    assert two.attached(20, "witness") is None
    assert len(names(folder)) == 2


def test_keep_below_two_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="keep must be at least 2, got 1"):
        Store(folder, run_id="run-a", keep=1)


@pytest.mark.parametrize(
    "facts",
    [{"a": float("nan")}, {"a": (1,)}, {1: 2}, {"a": object()}],
    ids=["nan", "tuple", "int key", "object"],
)
def test_facts_that_are_not_json_are_refused(store: Store, folder: Path, facts: Any) -> None:
    with pytest.raises(StateError, match="facts must be plain JSON"):
        store.save(Snapshot(cursor=1, states={}, facts=facts))
    assert names(folder) == []


def test_a_state_that_cannot_be_stored_leaves_nothing_behind(store: Store, folder: Path) -> None:
    with pytest.raises(StateError, match=r"^model\.hook is a function"):
        store.save(Snapshot(cursor=1, states={"model": {"hook": lambda: 0}}, facts={}))
    assert names(folder) == []


# Damage


@pytest.mark.parametrize("name", [MANIFEST, TENSORS])
def test_every_truncation_and_growth_is_found(
    name: str, two: Store, folder: Path, make_snapshot: Make
) -> None:
    path = step(folder, 20) / name
    content = path.read_bytes()
    for size in {0, 1, 8, len(content) // 2, len(content) - 1}:
        path.write_bytes(content[:size])
        assert_falls_back(two, name.replace(".", r"\."), make_snapshot)
    path.write_bytes(content + b" ")
    assert_falls_back(two, name.replace(".", r"\."), make_snapshot)


@pytest.mark.parametrize("name", [MANIFEST, TENSORS])
def test_every_flipped_bit_is_found(name: str, two: Store, folder: Path, make_snapshot: Make) -> None:
    path = step(folder, 20) / name
    content = path.read_bytes()
    flips = random.Random(7)
    for _ in range(60):
        changed = bytearray(content)
        changed[flips.randrange(len(content))] ^= 1 << flips.randrange(8)
        path.write_bytes(changed)
        assert_falls_back(two, name.replace(".", r"\."), make_snapshot)


@pytest.mark.parametrize("name", [MANIFEST, TENSORS])
def test_a_missing_file_is_named(name: str, two: Store, folder: Path, make_snapshot: Make) -> None:
    (step(folder, 20) / name).unlink()
    assert_falls_back(two, f"{name} is missing", make_snapshot)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"run": "run-b"}, "belongs to run 'run-b', this is run 'run-a'"),
        ({"version": 3}, r"written by a newer truestep \(snapshot version 3, this one reads 2\): upgrade"),
        ({"format": "other"}, "has the format 'other', 'truestep-snapshot' expected"),
        ({"cursor": 30}, "is the snapshot of cursor 30 under the name of another"),
        ({"tensors": {}}, "disagree about names, shapes or dtypes"),
        ({"structure": {"type": "unknown"}}, "cannot be read: KeyError"),
        ({"version": "one"}, "cannot be read: TypeError"),
        ({"files": [{"name": "../../x", "bytes": 0, "sha256": ""}]}, r"\.\./\.\./x is missing"),
    ],
    ids=str,
)
def test_a_manifest_that_does_not_fit_is_named(
    changes: dict[str, Any], reason: str, two: Store, folder: Path, make_snapshot: Make
) -> None:
    rewrite_manifest(step(folder, 20), **changes)
    assert_falls_back(two, reason, make_snapshot)


def test_all_damaged_snapshots_are_named_when_none_is_good(two: Store, folder: Path) -> None:
    for cursor in (10, 20):
        os.truncate(step(folder, cursor) / TENSORS, 3)
    loaded, damages = two.load_newest()
    assert loaded is None
    assert [damage.path.name for damage in damages] == ["step-000000000020", "step-000000000010"]


def test_a_file_or_a_link_in_place_of_a_folder_is_damage(
    two: Store, folder: Path, make_snapshot: Make
) -> None:
    step(folder, 20).rename(folder.parent / "elsewhere")
    step(folder, 20).symlink_to(folder.parent / "elsewhere")
    assert_falls_back(two, "is not a folder", make_snapshot)
    step(folder, 20).unlink()
    step(folder, 20).write_text("")
    assert_falls_back(two, "is not a folder", make_snapshot)


def test_a_pipe_or_a_link_in_place_of_a_file_is_never_opened(
    two: Store, folder: Path, make_snapshot: Make
) -> None:
    for name in (TENSORS, MANIFEST):
        path = step(folder, 20) / name
        path.unlink()
        os.mkfifo(path)
        assert_falls_back(two, f"{name} is not a regular file", make_snapshot)


def test_a_planted_pickle_is_never_opened(
    two: Store, folder: Path, make_snapshot: Make, tmp_path: Path
) -> None:
    marker = tmp_path / "unpickled"

    class Evil:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(marker),))

    evil = pickle.dumps(Evil())
    (step(folder, 20) / "data.pkl").write_bytes(evil)
    assert_falls_back(two, r"holds 'data\.pkl', which is not part of it \(it was not opened\)", make_snapshot)
    (step(folder, 20) / "data.pkl").unlink()
    (step(folder, 20) / TENSORS).write_bytes(evil)
    assert_falls_back(two, TENSORS, make_snapshot)
    # Even with sizes and hashes that fit, it is only ever given to safetensors.
    written = write_file(step(folder, 20) / "new", [evil])
    (step(folder, 20) / "new").rename(step(folder, 20) / TENSORS)
    files = [{"name": TENSORS, "bytes": written.num_bytes, "sha256": written.sha256}]
    rewrite_manifest(step(folder, 20), files=files)
    assert_falls_back(two, "cannot be read: SafetensorError", make_snapshot)
    assert not marker.exists()
    pickle.loads(evil)
    assert marker.exists(), "the pickle would have done its work"


# Attachments


def test_an_attachment_comes_back_and_goes_with_its_snapshot(
    two: Store, folder: Path, make_snapshot: Make
) -> None:
    value: Any = {"lane": 0, "digest": "ab", "numbers": [1, 2.5, None]}
    two.attach(10, "witness", value=value)
    two.attach(20, "witness", value="first")
    two.attach(20, "witness", value="second")
    assert two.attached(10, "witness") == value
    assert two.attached(20, "witness") == "second"
    assert two.attached(20, "other") is None
    assert two.load_newest()[1] == []
    two.save(make_snapshot(30))
    left = [step(folder, 20).name, f"{step(folder, 20).name}.witness.json", step(folder, 30).name]
    assert names(folder) == left
    assert two.attached(10, "witness") is None


def test_a_damaged_attachment_reads_as_none(two: Store, folder: Path) -> None:
    two.attach(20, "witness", value="abc")
    path = folder / "step-000000000020.witness.json"
    content = path.read_bytes()
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 4
        path.write_bytes(changed)
        assert two.attached(20, "witness") is None
    path.write_bytes(content)
    assert two.attached(20, "witness") == "abc"
    assert Store(folder, run_id="run-b").attached(20, "witness") is None
    shutil.copy(path, folder / "step-000000000010.witness.json")
    assert two.attached(10, "witness") is None


def test_attaching_to_nothing_or_with_a_bad_name_is_refused(two: Store) -> None:
    with pytest.raises(UsageError, match="step-000000000030 does not exist: attach 'witness' after"):
        two.attach(30, "witness", value=1)
    with pytest.raises(UsageError, match=r"name must be lower-case .* got '\.\./x'"):
        two.attach(20, "../x", value=1)
    with pytest.raises(StateError, match="witness must be plain JSON"):
        two.attach(20, "witness", value=float("inf"))


def test_clean_removes_leftovers_and_nothing_else(two: Store, folder: Path) -> None:
    two.attach(20, "witness", value=1)
    before = names(folder)
    for name in (".tmp-1-0", ".trash-1-0"):
        (folder / name).mkdir()
        (folder / name / "x").write_text("")
    (folder / ".tmp-1-1").write_text("")
    (folder / "step-000000000005.witness.json").write_text("{}")
    two.clean()
    assert names(folder) == before


def test_leftovers_of_a_process_with_the_same_number_are_no_obstacle(
    store: Store, folder: Path, make_snapshot: Make
) -> None:
    for number in range(3):
        (folder / f".tmp-{os.getpid()}-{number}").mkdir(parents=True)
    assert store.save(make_snapshot(1)).is_dir()


# A full disk


def test_a_file_in_place_of_the_folder_fails_the_save(tmp_path: Path, make_snapshot: Make) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(SaveFailed, match=r"Not a directory|File exists"):
        Store(tmp_path / "run" / "snapshots", run_id="run-a").save(make_snapshot(1))
