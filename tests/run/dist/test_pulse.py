"""Who is lost is named once and ends the others; who is busy, ended or asleep with everybody is not lost."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import truestep as ts
from tests import processes
from truestep.errors import UsageError
from truestep.run.dist.pulse import LOST_PEER, Pulse

SILENCE_S = 2.0
"""Short enough to wait for, long enough for a machine with other things to do."""


def _live(
    function: Callable[[Pulse], None], rank: int, size: int, store: str, silence_s: float, err: str
) -> None:
    os.dup2(os.open(err, os.O_WRONLY | os.O_APPEND | os.O_CREAT), 2)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    pulse = Pulse(rank, size, silence_s=silence_s)
    pulse.start()
    function(pulse)
    pulse.close()
    os._exit(0)


@dataclass
class Group:
    """Processes with a pulse, and what they wrote to stderr."""

    processes: list[BaseProcess]
    err: Path

    def join(self, rank: int, *, limit_s: float = 30.0) -> int | None:
        self.processes[rank].join(limit_s)
        return self.processes[rank].exitcode

    def lines(self) -> list[str]:
        return self.err.read_text().splitlines()


Start = Callable[..., Group]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[BaseProcess] = []

    def start_group(
        function: Callable[[Pulse], None], *, size: int, store: str = "file", silence_s: float = SILENCE_S
    ) -> Group:
        with socket.create_server(("localhost", 0)) as server:
            port = server.getsockname()[1]
        address = f"file://{tmp_path / 'store'}" if store == "file" else f"tcp://localhost:{port}"
        for rank in range(size):
            arguments = (function, rank, size, address, silence_s, str(tmp_path / "err"))
            process = processes._CONTEXT.Process(target=_live, args=arguments, daemon=True)
            process.start()
            started.append(process)
        return Group(started, tmp_path / "err")

    yield start_group
    for process in started:
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
        process.join()


def stop_rank_2(pulse: Pulse) -> None:
    pulse.step = 1234 + dist.get_rank()
    dist.barrier()
    time.sleep(0.5)
    if dist.get_rank() == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(30)


@pytest.mark.slow
@pytest.mark.parametrize("store", ["file", "tcp"])
def test_a_stopped_process_is_named_once_and_all_others_end(start: Start, store: str) -> None:
    group = start(stop_rank_2, size=4, store=store)
    assert [group.join(rank) for rank in (0, 1, 3)] == [LOST_PEER] * 3
    (line,) = group.lines()
    name = f"rank 2 (pid {group.processes[2].pid} on {socket.gethostname()})"
    assert line.startswith(f"truestep: {name} has given no sign of life for 2 s; its last step was 1,236.")
    os.kill(group.processes[2].pid, signal.SIGCONT)
    if store == "file":
        assert group.join(2) == LOST_PEER, "who comes back late has been given up"


def stop_rank_0(pulse: Pulse) -> None:
    pulse.step = 5
    dist.barrier()
    time.sleep(0.5)
    if dist.get_rank() == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.barrier()


@pytest.mark.slow
def test_whoever_hears_nothing_of_the_store_ends_and_says_so(start: Start) -> None:
    group = start(stop_rank_0, size=3, store="tcp")
    assert [group.join(rank) for rank in (1, 2)] == [LOST_PEER] * 2
    lines = sorted(group.lines())
    for rank, line in enumerate(lines, start=1):
        name = f"rank {rank} (pid {group.processes[rank].pid} on {socket.gethostname()})"
        assert line.startswith(f"truestep: {name} has had no answer from the store of the group for 2 s;")
        assert line.endswith("Ending this process after step 5")
    assert len(lines) == 2


def leave_with_the_store(pulse: Pulse) -> None:
    dist.barrier()
    if dist.get_rank() == 0:
        return
    time.sleep(2.5 * SILENCE_S)


@pytest.mark.slow
def test_a_store_that_was_closed_is_not_silent(start: Start) -> None:
    group = start(leave_with_the_store, size=3, store="tcp")
    assert [group.join(rank) for rank in range(3)] == [0, 0, 0]
    assert not [line for line in group.lines() if line.startswith("truestep:")]


def kill_rank_1(pulse: Pulse) -> None:
    pulse.step = 7
    time.sleep(1.5)  # until it has been said
    vector = torch.ones(3)
    for index in range(100):
        if dist.get_rank() == 1 and index == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(vector)
        time.sleep(0.02)


def kill_rank_1_uncaught(pulse: Pulse) -> None:
    try:
        kill_rank_1(pulse)
    except RuntimeError as error:
        sys.excepthook(type(error), error, error.__traceback__)
    os._exit(1)


def kill_rank_1_in_a_run(pulse: Pulse) -> None:
    pulse.close()
    folder = Path("/proc/self/fd/2").readlink().with_name("run")
    try:
        with ts.Run(folder, seed=1, lanes=3, progress=False) as run:
            kill_rank_1(run._pulse)
    except RuntimeError as error:
        sys.excepthook(type(error), error, error.__traceback__)
    os._exit(1)


@pytest.mark.parametrize("function", [kill_rank_1_uncaught, kill_rank_1_in_a_run])
def test_a_killed_process_is_named_once_in_place_of_tracebacks(
    start: Start, function: Callable[[Pulse], None]
) -> None:
    group = start(function, size=3, silence_s=30.0)
    assert [group.join(rank) for rank in (0, 1, 2)] == [LOST_PEER, -signal.SIGKILL, LOST_PEER]
    (line,) = group.lines()
    assert line.startswith(
        f"truestep: rank 1 (pid {group.processes[1].pid} on {socket.gethostname()}) is gone;"
    )
    assert "its last step was 7." in line


def leave_early(pulse: Pulse) -> None:
    if dist.get_rank() in (1, 2):
        return
    time.sleep(2.5 * SILENCE_S)


def compute_long(pulse: Pulse) -> None:
    end_s = time.monotonic() + 2.5 * SILENCE_S
    while dist.get_rank() == 1 and time.monotonic() < end_s:
        sum(range(10_000))
    time.sleep(max(0.0, end_s - time.monotonic()))


def pulse_twice(pulse: Pulse) -> None:
    pulse.close()
    time.sleep(0.3 * dist.get_rank())
    again = Pulse(dist.get_rank(), dist.get_world_size(), silence_s=SILENCE_S)
    again.start()
    time.sleep(1.5 * SILENCE_S)
    again.close()


@pytest.mark.slow
@pytest.mark.parametrize("function", [leave_early, compute_long, pulse_twice])
def test_who_ended_or_is_busy_is_not_lost(start: Start, function: Callable[[Pulse], None]) -> None:
    group = start(function, size=3)
    assert [group.join(rank) for rank in range(3)] == [0, 0, 0], group.lines()
    assert group.lines() == []


def sleep_long(pulse: Pulse) -> None:
    dist.barrier()
    os.write(2, b"ready\n")
    time.sleep(3 * SILENCE_S)


@pytest.mark.slow
@pytest.mark.parametrize("store", ["file", "tcp"])
def test_a_machine_that_slept_has_lost_nobody(start: Start, store: str) -> None:
    group = start(sleep_long, size=3, store=store)
    while len(group.lines() if group.err.exists() else []) < 3:
        time.sleep(0.05)
    time.sleep(0.5)
    for process in group.processes:
        os.kill(process.pid, signal.SIGSTOP)
    time.sleep(1.5 * SILENCE_S)
    for process in group.processes:
        os.kill(process.pid, signal.SIGCONT)
        time.sleep(0.5)  # who wakes first sees the others as they were
    assert [group.join(rank) for rank in range(3)] == [0, 0, 0]
    assert group.lines() == ["ready"] * 3


def explain_what_is_no_loss(pulse: Pulse) -> list[str | None]:
    explained = [pulse.explain(ValueError("a mistake")), pulse.explain(RuntimeError("gloo: odd"))]
    pulse.end_if_lost(ValueError("a mistake"))
    return explained


def explain_with_all_alive() -> list[str | None]:
    pulse = Pulse(dist.get_rank(), dist.get_world_size(), silence_s=0.4)
    pulse.start()
    explained = explain_what_is_no_loss(pulse)
    dist.barrier()
    pulse.close()
    return explained


def test_an_error_while_all_are_alive_stays_what_it_is() -> None:
    assert processes.run_processes(explain_with_all_alive, size=3) == [[None, None]] * 3


def explain_after_one_left() -> str | None:
    pulse = Pulse(dist.get_rank(), dist.get_world_size(), silence_s=0.4)
    pulse.start()
    pulse.step = 3
    if dist.get_rank() == 2:
        pulse.close()
    dist.barrier()
    error = OSError("saving failed")
    error.__cause__ = RuntimeError("[gloo/pair.cc] Connection closed by peer")
    sentence = pulse.explain(error) if dist.get_rank() == 0 else None
    dist.barrier()
    return sentence


def test_a_process_that_left_too_early_is_named() -> None:
    sentence = processes.run_processes(explain_after_one_left, size=3)[0]
    assert sentence is not None and sentence.startswith("rank 2 (pid ")
    assert "ended after step 3 while others still needed it" in sentence


def test_alone_there_is_nobody_to_watch() -> None:
    hook = sys.excepthook
    pulse = Pulse(0, 1)
    pulse.start()
    assert sys.excepthook is hook
    assert "truestep pulse" not in [thread.name for thread in threading.enumerate()]
    assert pulse.explain(RuntimeError("gloo")) is None
    pulse.close()


def hook_before_during_after() -> list[bool]:
    hook = sys.excepthook
    pulse = Pulse(dist.get_rank(), dist.get_world_size())
    pulse.start()
    during = sys.excepthook is hook
    pulse.close()
    return [during, sys.excepthook is hook]


def test_close_gives_the_hook_for_errors_back() -> None:
    assert processes.run_processes(hook_before_during_after, size=2) == [[False, True]] * 2


ORPHAN = """
import os, time
from truestep.run.dist.pulse import Pulse
Pulse(0, 1, silence_s=0.4).start()
print("ready", flush=True)
time.sleep(60)
"""

LAUNCHER = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
child.stdout.readline()
os._exit(0)
"""


@pytest.mark.slow
def test_a_process_ends_with_its_launcher() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHER, ORPHAN],
        env=os.environ | {"TORCHELASTIC_RUN_ID": "any"},
        stderr=subprocess.PIPE,  # read to its end: until the orphan has closed it too
        timeout=50,
        text=True,
        check=True,
    )
    assert re.fullmatch(r"truestep: the launcher of rank 0 \(pid \d+\) is gone; ending it too\n", done.stderr)


def test_no_silence_at_all_is_refused() -> None:
    with pytest.raises(UsageError, match="silence_s must be more than 0, got 0"):
        Pulse(0, 2, silence_s=0)
