"""How processes come together, what they do when they cannot, and small talk between them."""

import os
import socket
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests import processes
from tests.processes import run_processes
from truestep.run.dist import world as module
from truestep.run.dist.pulse import LOST_PEER
from truestep.run.dist.world import join


def talk() -> tuple[int, list[float], list[str], str]:
    world = join()
    vector = torch.zeros(world.size, dtype=torch.float64)
    vector[world.rank] = 0.1 * (world.rank + 1)
    world.add(vector)
    return (
        world.rank,
        vector.tolist(),
        world.gather(f"from {world.rank}"),
        world.share(f"by {world.rank}"),
    )


def test_all_processes_hear_the_same() -> None:
    heard = run_processes(talk, size=3)
    assert [rank for rank, *_ in heard] == [0, 1, 2]
    for _, vector, gathered, shared in heard:
        assert vector == [0.1, 0.2, 0.1 * 3]
        assert gathered == ["from 0", "from 1", "from 2"]
        assert shared == "by 0"


def join_launched(port: int, rank: int, size: int, host: str, err: str) -> None:
    """Join as a process of torchrun that has its store in the launcher; alone, leave and join again."""
    os.dup2(os.open(err, os.O_WRONLY | os.O_APPEND | os.O_CREAT), 2)
    sys.stderr = os.fdopen(2, "w")
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": "0"}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    os.environ |= {"TORCHELASTIC_RUN_ID": "any", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    module.JOIN_LIMIT_S = 3.0 if host == "alone" else 60.0
    socket.gethostname = lambda: host
    world = join()
    if size == 1:
        dist.destroy_process_group()
        assert join() == world
    os._exit(0)


@pytest.fixture
def launcher() -> dist.TCPStore:
    return dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)


def join_from(hosts: list[str], launcher: dist.TCPStore, *, size: int, err: Path) -> list[int | None]:
    """Exit codes of processes that join from machines of these names."""
    started = []
    for rank, host in enumerate(hosts):
        arguments = (launcher.port, rank, size, host, str(err))
        process = processes._CONTEXT.Process(target=join_launched, args=arguments, daemon=True)
        process.start()
        started.append(process)
    for process in started:
        process.join(60)
        process.kill()
    return [process.exitcode for process in started]


def test_a_store_of_processes_before_is_refused_with_what_to_set(
    launcher: dist.TCPStore, tmp_path: Path
) -> None:
    err = tmp_path / "err"
    assert join_from(["a"], launcher, size=1, err=err) == [0], err.read_text()
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" not in err.read_text()
    assert join_from(["a"], launcher, size=1, err=err) == [1]
    assert "Set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun on every machine" in err.read_text()


def test_processes_that_do_not_come_together_end_and_say_so(launcher: dist.TCPStore, tmp_path: Path) -> None:
    err = tmp_path / "err"
    assert join_from(["alone"], launcher, size=2, err=err) == [LOST_PEER]
    assert "truestep: the processes of this run have not found each other within 3 s;" in err.read_text()


@pytest.mark.parametrize(("hosts", "is_told"), [(["a", "a"], False), (["a", "b"], True)])
def test_machines_that_share_a_store_are_told_in_time(
    launcher: dist.TCPStore, tmp_path: Path, hosts: list[str], is_told: bool
) -> None:
    err = tmp_path / "err"
    assert join_from(hosts, launcher, size=2, err=err) == [0, 0], err.read_text()
    told = "truestep: should a machine be lost, this run could not take it in again. Set TORCH_DISABLE"
    assert (told in err.read_text()) is is_told
