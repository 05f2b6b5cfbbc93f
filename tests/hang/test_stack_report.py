"""Where a process stands: waits that cannot end, and waits that can."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from truestep.hang import Patrol
from truestep.watch.evidence.stalls import Standing
from truestep.watch.script import collectives

# One process without torch, with short waits: the main thread stops at its last lines.
STAND = """
import os, sys, threading, time
from pathlib import Path
from truestep.watch.script import stack_report
stack_report._LOOK_S, stack_report._STILL_S, stack_report._AGAIN_S = 0.05, 0.3, 0.1
stack_report.StackReport(Path(sys.argv[1])).start()
lock = threading.Lock()
{body}
"""
LOCK = "lock.acquire()\nwith lock:  # stands\n    pass"
BODIES = {
    "a lock taken twice": ("stuck", "lock", LOCK),
    "input": ("stuck", "input", "input()  # stands"),
    "sleep": ("living", "", "time.sleep(60)  # stands"),
    "a lock with a timeout": ("living", "", "lock.acquire()\nlock.acquire(timeout=60)  # stands"),
    "an event that a thread may set": (
        "living",
        "",
        "event = threading.Event()\nthreading.Timer(60, event.set).start()\nevent.wait()  # stands",
    ),
    "a thread that threading does not know": (
        "living",
        "",
        "import _thread\n_thread.start_new_thread(lambda: time.sleep(60), ())\n" + LOCK,
    ),
    "an alarm": (
        "living",
        "",
        "import signal\nsignal.alarm(60)\nlock.acquire()\nlock.acquire()  # stands",
    ),
    "data from another program": ("living", "", "for line in sys.stdin:  # stands\n    pass"),
    "a queue that nothing fills": (
        "stuck",
        "queue",
        "import multiprocessing\nmultiprocessing.SimpleQueue().get()  # stands",
    ),
    "a queue of a child": (
        "living",
        "",
        """
from multiprocessing import get_context
queue = get_context("fork").SimpleQueue()
get_context("fork").Process(target=time.sleep, args=(60,), daemon=True).start()
queue.get()  # stands""",
    ),
    "a child": (
        "living",
        "",
        "import subprocess\nsubprocess.run(['sleep', '60'])  # stands",
    ),
}


def stand(folder: Path, body: str) -> Standing:
    """Run a script until it stands still, and return what it has written of that."""
    script = folder / "script.py"
    script.write_text(STAND.format(body=body))
    process = subprocess.Popen([sys.executable, str(script), str(folder)], stdin=subprocess.PIPE)
    patrol = Patrol(folder)
    try:
        for _ in range(2000):
            found = [item for item, _ in patrol._read() if item.since_s > 0.5]
            if found:
                return found[0]
            try:
                process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
        raise AssertionError("it has not written where it stands")
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="kernel waits are read from /proc")
@pytest.mark.parametrize("name", BODIES)
def test_only_a_wait_that_cannot_end_is_stuck(tmp_path: Path, name: str) -> None:
    doing, how, body = BODIES[name]
    found = stand(tmp_path, body)
    assert (found.doing, found.how) == (doing, how)
    text = (tmp_path / "script.py").read_text().split("\n")
    assert text[found.stack[0].line - 1].endswith("# stands")


HEAD = """
import sys, time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
"""
UNEVEN = """
for step in range(3 if rank == 0 else 2):
    dist.all_reduce(torch.ones(2, 4))
dist.barrier()
"""
EARLY = """
for step in range(3 if rank == 0 else 2):
    dist.all_reduce(torch.ones(2, 4))
"""
SLOW = """
if rank == 1:
    time.sleep(8)
dist.barrier()
"""


def run(folder: Path, body: str) -> subprocess.Popen[str]:
    script = folder / "train.py"
    script.write_text(HEAD + body)
    truestep = str(Path(sys.executable).with_name("truestep"))
    words = [truestep, "run", "-n", "2", "--max-restarts", "0", str(script)]
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=folder)


@pytest.mark.slow
def test_a_hang_is_reported_while_the_job_still_runs(tmp_path: Path) -> None:
    process = run(tmp_path, UNEVEN)
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line.strip())
        if "still runs" in line:
            break
    process.terminate()
    process.communicate(timeout=90)
    assert "elsewhere     rank 1" in lines
    assert any(line.startswith("rank 1 waits in barrier at train.py:9") for line in lines)
    assert any(
        line.startswith("likely cause  uneven batches: rank 1 left the loop of line 7") for line in lines
    )


@pytest.mark.slow
def test_a_collective_that_fails_as_a_rank_has_ended_is_explained(tmp_path: Path) -> None:
    _, text = run(tmp_path, EARLY).communicate(timeout=120)
    assert "rank 1 has ended" in text
    assert "likely cause  uneven batches: rank 1 left the loop of line 7" in text


@pytest.mark.slow
def test_a_slow_rank_is_not_reported(tmp_path: Path) -> None:
    process = run(tmp_path, SLOW)
    _, text = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "truestep:" not in text


def test_members_of_groups_are_known_beside_groups_of_other_ranks() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        mine = dist.new_group([0, 3])
        dist.new_group([1, 2])
        members = collectives._members()
    finally:
        dist.destroy_process_group()
    assert members[mine.group_name] == (0, 3)
