"""One of several processes killed while all save: a whole snapshot remains, and nobody hangs."""

import atexit
import multiprocessing
import os
import random
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from tests.run.checkpoint.conftest import count_or_kill
from truestep.errors import SaveFailed
from truestep.run.checkpoint import BackgroundSaver, Crew, Snapshot, Store
from truestep.run.checkpoint.parts import Part
from truestep.run.checkpoint.store import find_cursors

SIZE, NUM_TENSORS, ROWS, WIDTH = 3, 6, 7, 4000
TIMEOUT_S = 8.0
LOST = 3

_CONTEXT = multiprocessing.get_context("forkserver")


def whole(index: int, cursor: int) -> torch.Tensor:
    return torch.full((ROWS, WIDTH), cursor * 100 + index, dtype=torch.int32)


def states_of(rank: int, cursor: int) -> dict[str, Any]:
    """What FSDP2 would give a process: some rows of each tensor."""
    states: dict[str, Any] = {"cursor": cursor}
    begin, end = rank * 3, min(rank * 3 + 3, ROWS)
    for index in range(NUM_TENSORS):
        local, layout = whole(index, cursor)[begin:end], {"shape": (ROWS, WIDTH), "stride": (WIDTH, 1)}
        states[str(index)] = Part(local=local, offsets=(begin, 0), **layout)
    return states


def keep_saving(rank: int, place: str, kill: tuple[int, str] | None, num_saves: int) -> None:
    """Save until another process is gone; then leave the way a script does."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    timeout = timedelta(seconds=TIMEOUT_S)
    dist.init_process_group(
        "gloo", init_method=f"file://{place}/meet", rank=rank, world_size=SIZE, timeout=timeout
    )
    crew = Crew(rank=rank, size=SIZE, group=dist.new_group(backend="gloo", timeout=timeout))
    saver = BackgroundSaver(Store(Path(place, "snapshots"), run_id="run-a", crew=crew))
    code = 0
    try:
        for cursor in range(1, num_saves + 1):
            if cursor == 2 and kill is not None:
                count_or_kill(*kill)
            saver.submit(Snapshot(cursor=cursor, states=states_of(rank, cursor), facts={}))
            if cursor == 1:
                saver.wait()
    except SaveFailed:
        code = LOST
    atexit._run_exitfuncs()  # as at the end of a script, which waits for the save under way
    os._exit(code)


def start(place: Path, kills: dict[int, tuple[int, str]], num_saves: int) -> list[Any]:
    place.mkdir()
    processes = []
    for rank in range(SIZE):
        arguments = (rank, str(place), kills.get(rank), num_saves)
        processes.append(_CONTEXT.Process(target=keep_saving, args=arguments, daemon=True))
        processes[-1].start()
    return processes


def end(processes: list[Any]) -> list[int]:
    """Return the exit codes; whoever still runs after the group's timeout has hung."""
    deadline_s = time.monotonic() + 3 * TIMEOUT_S + 10
    for process in processes:
        process.join(max(0.0, deadline_s - time.monotonic()))
    hung = [rank for rank, process in enumerate(processes) if process.is_alive()]
    for rank in hung:
        processes[rank].kill()
        processes[rank].join()
    assert hung == [], f"processes {hung} did not end"
    return [process.exitcode for process in processes]


def check(place: Path, least: int) -> int:
    """Every published snapshot must be whole: the newest one, and the one before it."""
    store = Store(place / "snapshots", run_id="run-a")
    loaded, damages = store.load_newest()
    assert damages == []
    assert loaded is not None and loaded.cursor >= least and loaded.states["cursor"] == loaded.cursor
    for index in range(NUM_TENSORS):
        assert torch.equal(loaded.states[str(index)], whole(index, loaded.cursor))
    assert all(store._find_damage(cursor) is None for cursor in find_cursors(place / "snapshots"))
    store.clean()
    assert all(path.name.startswith("step-") for path in (place / "snapshots").iterdir())
    return loaded.cursor


def test_killed_at_a_system_call_of_a_save_a_whole_snapshot_remains(tmp_path: Path) -> None:
    pick = random.Random(5)
    for turn in range(9):
        place, victim = tmp_path / str(turn), turn % SIZE
        # The first process makes about 17 changing calls in a save, the others 9.
        kill = (pick.randrange(26 if victim == 0 else 14), pick.choice(["before", "after", "halfway"]))
        codes = end(start(place, {victim: kill}, 5))
        print(f"process {victim} killed {kill[1]} call {kill[0]}: {codes}")
        assert codes[victim] == -signal.SIGKILL or kill[1] == "halfway"
        assert all(code in (0, LOST) for rank, code in enumerate(codes) if rank != victim)
        check(place, 1)


def test_killed_at_any_time_a_whole_snapshot_remains(tmp_path: Path) -> None:
    pick = random.Random(6)
    for turn in range(6):
        place, victim = tmp_path / str(turn), (turn + 1) % SIZE
        processes = start(place, {}, 10_000)
        deadline_s = time.monotonic() + 120
        while not list(place.glob("snapshots/step-*")):
            assert time.monotonic() < deadline_s and all(process.is_alive() for process in processes)
            time.sleep(0.01)
        time.sleep(pick.uniform(0.0, 0.5))
        processes[victim].kill()
        codes = end(processes)
        assert codes == [-signal.SIGKILL if rank == victim else LOST for rank in range(SIZE)]
        print(f"process {victim} killed: at cursor {check(place, 1)}")
