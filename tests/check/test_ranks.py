"""Ranks side by side: the slow one is known by its own work, not by how long its steps take."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from truestep.check.ranks import compare_ranks
from truestep.watch import Moment, Process
from truestep.watch.evidence.facts.loading import BatchFetched
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.passes import BackwardPass, ParallelMade
from truestep.watch.evidence.facts.surroundings import RankEnded

BEGUN_NS = 10**18
NUM_STEPS = 20


def moment(facts: Any, at_s: float, took_s: float = 0.0) -> Moment[Any]:
    return Moment(facts=facts, step=0, at_s=at_s, took_s=took_s, file="train.py", line=1, function="<module>")


def job(works_s: list[float], *, num_buckets: int = 1, data_s: float = 0.0) -> list[Process]:
    """Return ranks that work so long in each step, then sum gradients in buckets 1 ms apart."""
    step_s = max(works_s) + 0.001 * num_buckets
    processes = []
    for rank, work_s in enumerate(works_s):
        moments, arrivals = [moment(ParallelMade("DistributedDataParallel", is_in_group=False), 0.0)], []
        for step in range(NUM_STEPS):
            begun_s = step * step_s
            moments.append(moment(BatchFetched(0, None), begun_s, data_s))
            for bucket in range(num_buckets):
                at_s = begun_s + work_s + 0.001 * bucket
                arrivals.append(("0", step * num_buckets + bucket, BEGUN_NS + round(at_s * 1e9)))
            backward_s = begun_s + work_s - 0.0005
            moments.append(
                moment(BackwardPass("backward", None, None, None), backward_s, begun_s + step_s - backward_s)
            )
            moments.append(moment(OptimizerStep(0, False, True, None), begun_s + step_s))
        end_s = NUM_STEPS * step_s
        moments.append(moment(RankEnded(arrivals, 2**20 * (rank + 1), BEGUN_NS + round(end_s * 1e9)), end_s))
        processes.append(Process(pid=rank, argv=[], rank=rank, size=len(works_s), moments=moments))
    return processes


@pytest.mark.parametrize("num_buckets", [1, 5])
def test_slow_rank_is_the_one_others_wait_for(num_buckets: int) -> None:
    rows = compare_ranks(job([0.05, 0.2, 0.05], num_buckets=num_buckets))
    assert [row.is_slow for row in rows] == [False, True, False]
    assert len({round(row.step_s or 0.0, 6) for row in rows}) == 1  # steps take all the same
    assert [row.wait_s for row in rows] == pytest.approx([0.15, 0.0, 0.15], abs=1e-6)
    assert [row.work_s for row in rows] == pytest.approx(
        [0.05 + 0.001 * num_buckets, 0.2 + 0.001 * num_buckets, 0.05 + 0.001 * num_buckets], abs=1e-6
    )
    assert [row.peak_bytes for row in rows] == [2**20, 2**21, 3 * 2**20]


def test_equal_ranks_have_no_slow_one() -> None:
    rows = compare_ranks(job([0.05, 0.055, 0.051, 0.05], data_s=0.01))
    assert not any(row.is_slow for row in rows)
    assert rows[0].data_s == pytest.approx(0.01)


def test_one_process_and_too_few_steps_have_no_times() -> None:
    assert compare_ranks(job([0.1])) == []
    ranks = job([0.1, 0.2])
    for process in ranks:
        process.moments = [
            item for item in process.moments if item.at_s < 0.5 or item.facts.__class__ is RankEnded
        ]
    rows = compare_ranks(ranks)
    assert [(row.steps, row.work_s, row.is_slow) for row in rows] == [(0, None, False)] * 2
    assert rows[1].peak_bytes == 2**21


def test_killed_rank_has_a_row_without_figures() -> None:
    ranks = job([0.1, 0.1])
    ranks[1].moments = ranks[1].moments[:-1]
    rows = compare_ranks(ranks)
    assert (rows[1].rank, rows[1].steps, rows[1].peak_bytes) == (1, 0, None)


SCRIPT = """
import time, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(14):
    if dist.get_rank() == 1:
        time.sleep(0.5)
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_slow_rank_of_a_real_job_is_marked(tmp_path: Path) -> None:
    """In a job of three processes of which one sleeps in each step, this one is marked."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    command = [sys.executable, "-m", "truestep", "check", "--processes", "3"]
    done = subprocess.run(
        [*command, "--format", "json", str(path)], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    ranks = json.loads(done.stdout)["ranks"]
    assert [row["is_slow"] for row in ranks] == [False, True, False], ranks
    assert all(row["peak_bytes"] > 2**20 for row in ranks)
    assert ranks[0]["wait_s"] > ranks[1]["wait_s"]
