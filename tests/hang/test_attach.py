"""`truestep attach`: ranks and their stacks, read from outside."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from truestep.errors import UsageError
from truestep.hang import attach, find_verdict

SITE = "/venv/lib/python3.11/site-packages/torch"
C10D = f"{SITE}/distributed/distributed_c10d.py"


def thread(*frames: tuple[str, str, int]) -> list[dict[str, Any]]:
    known = [{"name": name, "filename": file, "line": line} for name, file, line in frames]
    return [{"os_thread_id": 1, "frames": known}]


def stand(monkeypatch: pytest.MonkeyPatch, rank: int, threads: list[dict[str, Any]], wait: str) -> Any:
    monkeypatch.setattr(attach.kernel, "state_of", lambda _: "S")
    monkeypatch.setattr(attach.kernel, "wait_of", lambda _, thread=None: (wait, 0))
    frames = attach._frames(threads[0])
    known = attach._Process(rank=rank, pid=1, frames=frames, threads=threads, workers=[], is_still=True)
    return attach._standing(known, {0: 10, 1: 11})


def test_stacks_become_facts_that_give_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    backward = (("_engine_run_backward", f"{SITE}/autograd/graph.py", 979), ("<module>", "/job/train.py", 8))
    barrier = (("barrier", C10D, 5), ("wrapper", f"{SITE}/distributed/x.py", 8), ("main", "/job/train.py", 9))
    first = stand(monkeypatch, 0, thread(*backward), "timed")
    second = stand(monkeypatch, 1, thread(*barrier), "timed")
    assert [item.doing for item in (first, second)] == ["waiting", "waiting"]
    assert first.pending.name == "backward" and second.pending.name == "barrier"
    verdict = find_verdict([first, second])
    assert verdict is not None
    assert [item.stack[0].line for item in (*verdict.waiting, *verdict.odd)] == [8, 9]


@pytest.mark.parametrize(("wait", "doing"), [("sleep", "living"), ("lock", "stuck"), ("poll", "living")])
def test_only_a_lock_is_certain_elsewhere(monkeypatch: pytest.MonkeyPatch, wait: str, doing: str) -> None:
    found = stand(
        monkeypatch, 1, thread(("fetch", "/job/data.py", 3), ("<module>", "/job/train.py", 8)), wait
    )
    assert found.doing == doing
    assert found.stack[0].line == 3


def test_ranks_are_found_from_the_launcher_and_from_a_rank() -> None:
    code = "(RANK=0 sleep 30) & (RANK=1 sleep 30) & echo ready; wait"
    words = ["bash", "-c", code]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        job.stdout.readline()
        until = time.monotonic() + 10  # the second process may not have begun yet
        while len(ranks := attach.find_ranks(job.pid)) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        assert sorted(ranks) == [0, 1]
        assert attach.find_ranks(ranks[1]) == ranks
        for pid in ranks.values():
            os.kill(pid, 9)
        job.kill()


def test_a_process_that_is_not_there_and_a_missing_program_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="there is no process 4194305"):
        attach.read_job(4194305)
    monkeypatch.setattr(attach.sysconfig, "get_path", lambda _: str(tmp_path))
    monkeypatch.setattr(attach.shutil, "which", lambda _: None)
    with pytest.raises(
        UsageError, match=r"attach needs py-spy\. Install it: pip install 'truestep\[attach\]'"
    ):
        attach.read_job(os.getpid())


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("py-spy") is None, reason="py-spy is not installed")
def test_a_real_process_is_read() -> None:
    code = "import threading\nlock = threading.Lock()\nlock.acquire()\nprint(flush=True)\nlock.acquire()\n"
    env = {**os.environ, "RANK": "0", "TRUESTEP_TESTS_COLD": "1"}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout is not None
        process.stdout.readline()
        job = attach.read_job(process.pid)
        process.kill()
    assert [(item.rank, item.doing) for item in job.standings] == [(0, "stuck")]


def test_on_another_system_it_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UsageError, match="attach needs Linux"):
        attach.read_job(os.getpid())
