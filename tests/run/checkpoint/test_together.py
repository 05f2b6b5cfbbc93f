"""Snapshots that several processes write together: any number reads them, whole or spread, bit for bit."""

import errno
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.processes import run_processes
from tests.run.checkpoint import spread
from truestep.errors import SaveFailed, StateError, TruestepError, UsageError
from truestep.run.checkpoint import BackgroundSaver, Crew, Snapshot, Store
from truestep.run.checkpoint.snapshot import MANIFEST, seal, unseal


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def step(folder: Path | str, cursor: int) -> Path:
    return Path(folder) / f"step-{cursor:012d}"


def test_what_three_wrote_one_and_four_read_and_the_other_way_round(tmp_path: Path) -> None:
    three, whole = tmp_path / "three", tmp_path / "whole"
    run_processes(spread.save, str(three), 10, 20, size=3)
    loaded, damages = Store(three, run_id=spread.RUN).load_newest()
    assert loaded is not None and damages == []
    assert loaded.cursor == 20 and loaded.facts == {"cursor": 20}
    assert spread.find_wrong(loaded.states, 20) == []
    assert all(type(tensor) is torch.Tensor for tensor in loaded.states["tracked"]["model"].values())
    Store(whole, run_id=spread.RUN).save(loaded)
    assert b'"version":1' in (step(whole, 20) / MANIFEST).read_bytes()
    assert run_processes(spread.load, str(three), str(whole), size=4) == [[(20, [], []), (20, [], [])]] * 4


def test_files_are_one_per_process_and_none_is_a_pickle(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    run_processes(spread.save, str(tmp_path), 10, 20, 30, size=4)
    assert names(tmp_path) == [step(tmp_path, 20).name, step(tmp_path, 30).name]
    parts = [f"part-0000{rank}-of-00004.safetensors" for rank in range(4)]
    assert names(step(tmp_path, 30)) == [MANIFEST, *parts]
    rows = [load_file(step(tmp_path, 30) / part)["tracked.model.embedding.weight"].shape[0] for part in parts]
    assert rows == [3, 3, 3, 2]
    assert all("head.weight" not in name for part in parts for name in load_file(step(tmp_path, 30) / part))
    for path in step(tmp_path, 30).iterdir():
        with pytest.raises((pickle.UnpicklingError, ValueError, EOFError, IndexError, KeyError)):
            pickle.loads(path.read_bytes())
    manifest = unseal((step(tmp_path, 30) / MANIFEST).read_bytes())
    assert manifest["version"] == 2
    few = manifest["tensors"]["tracked.model.few.weight"]
    assert few["shape"] == [2, 4] and few["dtype"] == "float32"
    assert [(chunk["file"], chunk["offsets"], chunk["shape"]) for chunk in few["chunks"]] == [
        (parts[0], [0, 0], [1, 4]),
        (parts[1], [1, 0], [1, 4]),
    ]


def test_reading_alone_unpickles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_processes(spread.save, str(tmp_path), 10, size=2)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("something was unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    loaded, _ = Store(tmp_path, run_id=spread.RUN).load_newest()
    assert loaded is not None and loaded.cursor == 10


# Damage


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)


def plant(path: Path) -> None:
    (path.parent / ".metadata").write_bytes(pickle.dumps({"planted": True}))


def cut_a_chunk(path: Path) -> None:
    """Leave out one chunk in an otherwise perfect manifest."""
    manifest = unseal((path.parent / MANIFEST).read_bytes())
    manifest["tensors"]["tracked.model.embedding.weight"]["chunks"].pop()
    (path.parent / MANIFEST).write_bytes(seal(manifest))


DAMAGES: list[tuple[Callable[[Path], Any], str]] = [
    (truncate, "part-00002-of-00003.safetensors has "),
    (flip, "part-00002-of-00003.safetensors was altered"),
    (Path.unlink, "part-00002-of-00003.safetensors is missing"),
    (plant, "holds '.metadata', which is not part of it (it was not opened)"),
    (cut_a_chunk, "disagree about names, shapes or dtypes"),
]


def load_each_damaged(folder: str) -> list[Any]:
    found = []
    for damage, _ in DAMAGES:
        if dist.get_rank() == 0:
            shutil.copytree(folder, f"{folder}-damaged")
            damage(step(f"{folder}-damaged", 20) / "part-00002-of-00003.safetensors")
        dist.barrier()
        found += spread.load(f"{folder}-damaged")
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(f"{folder}-damaged")
        dist.barrier()
    return found


def test_damage_to_one_process_s_file_passes_the_snapshot_over_on_all(tmp_path: Path) -> None:
    run_processes(spread.save, str(tmp_path / "s"), 10, 20, size=3)
    answers = run_processes(load_each_damaged, str(tmp_path / "s"), size=4)
    assert all(answer == answers[0] for answer in answers)
    for (cursor, damages, wrong), (_, reason) in zip(answers[0], DAMAGES, strict=True):
        assert cursor == 10 and wrong == []
        assert len(damages) == 1 and reason in damages[0], damages


# Failure


def fail_on_one_process(folder: str) -> tuple[list[str], list[str]]:
    """Save 10, then 20 with a disk that is full for process 2, then 20 again."""
    store = spread.store_at(folder)
    store.save(spread.snapshot_of(spread.make(10), 10))
    write = os.write

    def refuse(descriptor: int, data: Any) -> int:
        if "part-" in Path(f"/proc/self/fd/{descriptor}").readlink().name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    saver = BackgroundSaver(store)
    if dist.get_rank() == 2:
        os.write = refuse
    saver.submit(spread.snapshot_of(spread.make(20), 20))
    with pytest.raises(SaveFailed) as caught:
        saver.wait()
    os.write = write
    dist.barrier()
    left = names(Path(folder))
    dist.barrier()
    saver.submit(spread.snapshot_of(spread.make(20), 20))
    saver.close()
    return left, [str(caught.value), *(str(path) for path in names(Path(folder)))]


def test_a_failure_on_one_process_fails_the_save_on_all_and_keeps_the_last_good_one(tmp_path: Path) -> None:
    results = run_processes(fail_on_one_process, str(tmp_path), size=3)
    for left, (message, *after) in results:
        assert left == [step(tmp_path, 10).name]
        assert "could not be written: No space left on device on process 2 (ENOSPC)" in message
        assert "Earlier snapshots are intact" in message
        assert after == [step(tmp_path, 10).name, step(tmp_path, 20).name]
    assert run_processes(spread.load, str(tmp_path), size=2) == [[(20, [], [])]] * 2


def hold_something_else(folder: str) -> list[str]:
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    tensor = distribute_tensor(torch.arange(12.0), mesh, [Shard(0)], src_data_rank=None)
    shorter = DTensor.from_local(tensor.to_local()[:3].clone(), mesh, [Shard(0)], run_check=False)
    store = spread.store_at(folder)
    messages = []
    extra = {"extra": tensor.clone()} if dist.get_rank() == 1 else {}
    for states in ({"a": tensor, **extra}, {"a": shorter if dist.get_rank() == 1 else tensor}):
        try:
            store.save(Snapshot(cursor=1, states=states, facts={}))
        except TruestepError as error:
            messages.append(str(error))
    try:
        Store(Path(folder), run_id=spread.RUN).save(Snapshot(cursor=1, states={"a": tensor}, facts={}))
    except StateError as error:
        messages.append(str(error))
    store.save(Snapshot(cursor=1, states={"a": tensor}, facts={}))
    return messages


def test_processes_that_hold_different_things_are_refused(tmp_path: Path) -> None:
    for extra, other, alone in run_processes(hold_something_else, str(tmp_path), size=2):
        assert "extra" in extra or "global plan" in extra  # before torch 2.13
        assert "process" in other
        assert alone.startswith("a is spread over several processes, but this one saves alone.")
    assert names(tmp_path) == [step(tmp_path, 1).name]


# What the states may hold


def save_odd_tensors(folder: str) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    states: dict[str, Any] = {"plain": torch.arange(3), "text": "é"}
    for name, (tensor, placement) in odd_tensors().items():
        placements = [Replicate()] if placement is None else [Shard(placement)]
        states[name] = distribute_tensor(tensor, mesh, placements, src_data_rank=None)
    store = spread.store_at(folder)
    store.save(Snapshot(cursor=1, states=states, facts={}))

    def target(path: tuple[Any, ...], shape: tuple[int, ...]) -> Any:
        value = states[path[0]]
        return value if hasattr(value, "placements") else None

    loaded, damages = store.load_newest(target=target)
    assert loaded is not None and damages == []
    for name in odd_tensors():
        was, now = states[name].to_local(), loaded.states[name].to_local()
        assert loaded.states[name].placements == states[name].placements
        assert was.dtype == now.dtype and was.shape == now.shape and was.stride() == now.stride(), name
        assert bytes_of(was) == bytes_of(now), name


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def odd_tensors() -> dict[str, tuple[torch.Tensor, int | None]]:
    torch.manual_seed(1)
    raw = torch.randint(0, 256, (7, 3), dtype=torch.uint8)
    images = torch.randn(5, 2, 3, 3).to(memory_format=torch.channels_last)
    return {
        "complex": (torch.randn(7, 3, dtype=torch.complex64), 0),
        "one byte": (raw.view(torch.float8_e8m0fnu), 0),
        "bool": (raw > 100, 0),
        "columns": (torch.randn(2, 7), 1),
        "replicated": (torch.randn(5), None),
        "nothing": (torch.empty(0, 3), 0),
        "one row": (torch.randn(1, 3), 0),
        "channels_last": (images, 0),
    }


def test_odd_tensors_come_back(tmp_path: Path) -> None:
    run_processes(save_odd_tensors, str(tmp_path), size=3)
    loaded, damages = Store(tmp_path, run_id=spread.RUN).load_newest()
    assert loaded is not None and damages == []
    assert loaded.states["text"] == "é" and torch.equal(loaded.states["plain"], torch.arange(3))
    for name, (tensor, _) in odd_tensors().items():
        assert loaded.states[name].dtype == tensor.dtype and loaded.states[name].shape == tensor.shape
        assert loaded.states[name].stride() == tensor.stride(), name
        assert bytes_of(loaded.states[name]) == bytes_of(tensor), name


def save_without_dtensors(folder: str) -> list[Any]:
    store = spread.store_at(folder)
    saver = BackgroundSaver(store)
    saver.submit(Snapshot(cursor=1, states={"w": torch.ones(3) * dist.get_rank()}, facts={}))
    is_idle = saver._thread is None
    saver.attach(1, "witness", value="abc")
    saver.wait()
    store.save(Snapshot(cursor=2, states={"w": torch.ones(3) * dist.get_rank()}, facts={}))
    dist.barrier()
    loaded, _ = store.load_newest()
    assert loaded is not None
    return [is_idle, loaded.cursor, loaded.states["w"].tolist(), store.attached(1, "witness")]


def test_without_spread_tensors_the_first_process_alone_saves(tmp_path: Path) -> None:
    results = run_processes(save_without_dtensors, str(tmp_path), size=3)
    assert results == [[rank > 0, 2, [0.0, 0.0, 0.0], "abc"] for rank in range(3)]
    assert names(step(tmp_path, 1)) == [MANIFEST, "tensors.safetensors"]


def test_a_crew_that_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match=r"rank must be from 0 to 1 for size=2, got 2\."):
        Crew(rank=2, size=2)
    with pytest.raises(UsageError, match="a crew of 2 processes needs a process group"):
        Crew(rank=0, size=2)
