"""How much memory saving and loading take of a process that holds a part of a large state."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from tests.processes import run_processes
from truestep.base import memory
from truestep.run.checkpoint import BackgroundSaver, Crew, Snapshot, Store

SIZE = 4
MIB = 2**20
PART_BYTES = 64 * MIB
SLACK_BYTES = 12 * MIB


def rise(begin: int) -> int:
    return memory.process_peak_bytes() - begin


def forget_peak() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return memory.process_peak_bytes()


def save_and_load(folder: str) -> dict[str, int]:
    """Return by how many bytes this process's peak rose over what it held before, for each way."""
    mesh = init_device_mesh("cpu", (SIZE,))
    rank, group = dist.get_rank(), dist.new_group(backend="gloo")
    local = torch.full((PART_BYTES // 4096, 1024), float(rank))
    state: dict[str, Any] = {"weight": DTensor.from_local(local, mesh, [Shard(0)])}
    store = Store(Path(folder), run_id="peak", crew=Crew(rank=rank, size=SIZE, group=group))
    saver = BackgroundSaver(store)
    small = {"weight": DTensor.from_local(local[:1].clone(), mesh, [Shard(0)])}
    saver.submit(Snapshot(cursor=1, states=small, facts={}))
    saver.wait()  # imports, once
    rises = {}
    for cursor, copies in enumerate((False, True), start=2):
        held = forget_peak()
        saver.submit(Snapshot(cursor=cursor, states=state, facts={}), copies=copies)
        saver.wait()
        rises["saved with a copy" if copies else "saved"] = rise(held)
    saver.close()
    held = forget_peak()
    loaded, damages = store.load_newest(target=lambda path, shape: state["weight"])
    rises["loaded"] = rise(held)
    assert loaded is not None and not damages
    assert torch.equal(loaded.states["weight"].to_local(), local)
    return rises


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the peak can be forgotten on Linux only"
)
@pytest.mark.slow
def test_saving_takes_no_memory_and_loading_that_of_the_part(tmp_path: Path) -> None:
    for found in run_processes(save_and_load, str(tmp_path), size=SIZE):
        assert found["saved"] < SLACK_BYTES
        assert PART_BYTES < found["saved with a copy"] < PART_BYTES + SLACK_BYTES
        # The part itself, and the pages of the file that it is copied from.
        assert PART_BYTES < found["loaded"] < 2 * PART_BYTES + SLACK_BYTES
