"""Claim: what each rank does alone costs about the same per rank, for 4,096 ranks and for 10,000.

FSDP2: one process plays one rank of many on torch's fake process group, which sends nothing; it shards a
model as `Run` does, and trains for a step. Schedule and hang analysis: computed for all ranks in one process,
as the launcher does. Processor time and memory, each size in a new process. No network is measured.
Exit code: 0 all claims hold, 1 one fails.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from measure import Claim, Row, Sheet, report

SHARDED, COMPUTED = (64, 512, 4096), (512, 4096, 10_000)
BLOCKS, ROWS, WIDTH = 4, 8192, 64
MAX_GROWTH = 2.0
"""How many times the cost per rank may grow from the smallest size to the largest."""


def shard_as(size: int) -> Row:
    """Shard a model as one rank of many, and make one step."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from truestep.device import peak_bytes
    from truestep.dist.shard import shard

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(WIDTH, ROWS, bias=False) for _ in range(BLOCKS))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return sum((block(x).square().mean() for block in self.blocks), torch.zeros(()))

    torch.set_num_threads(1)
    rank = size * 2 // 3
    model = Model()
    before_s = time.process_time()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    joined_s = time.process_time()
    shard(model, device=torch.device("cpu"))
    sharded_s = time.process_time()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, WIDTH)).backward()
    optimizer.step()
    local = sum(parameter.to_local().numel() for parameter in model.parameters())  # type: ignore[attr-defined]
    wanted = BLOCKS * WIDTH * (ROWS // size)
    return {
        "ranks": float(size),
        "join_s": joined_s - before_s,
        "shard_s": sharded_s - joined_s,
        "step_s": time.process_time() - sharded_s,
        "numbers held": float(local),
        "as expected": float(local == wanted),
        "peak_MiB": peak_bytes() / 2**20,
    }


def schedule_for(size: int) -> Row:
    """Plan who computes which lane, for all ranks."""
    from truestep.dist import schedule

    before_s = time.process_time()
    plan = schedule(range(2 * size), size=size, num_lanes=2 * size)
    is_whole = sorted(lane for rank in (0, size // 2, size - 1) for lane in plan.lanes_of(rank))
    took_s = time.process_time() - before_s
    ends = [0, 1, size // 2 * 2, size // 2 * 2 + 1, 2 * size - 2, 2 * size - 1]
    return {"ranks": float(size), "us per rank": took_s / size * 1e6, "as expected": float(is_whole == ends)}


def judge_hang_of(size: int) -> Row:
    """Find the rank that all others wait for, from what each of them has written."""
    import tracemalloc

    from truestep.hang import find_verdict
    from truestep.watch.evidence.kinds import Place
    from truestep.watch.evidence.standing import Collective, Standing

    odd, members = size // 3, tuple(range(size))
    met = Collective(group="0", number=7, name="all_reduce", members=members)
    place = (Place("train.py", 9, "<module>"),)
    usual = Standing(rank=0, size=size, pid=1, doing="waiting", since_s=5.0, stack=place, pending=met)
    texts = [replace(usual, rank=rank, pid=rank).pack() for rank in range(size)]
    texts[odd] = replace(usual, rank=odd, pid=odd, doing="stuck", how="lock", pending=None).pack()
    tracemalloc.start()
    before_s = time.process_time()
    standings = [Standing.unpack(text) for text in texts]
    read_s = time.process_time()
    verdict = find_verdict(standings)
    ended_s = time.process_time()
    is_found = verdict is not None and [item.rank for item in verdict.odd] == [odd]
    return {
        "ranks": float(size),
        "read, us per rank": (read_s - before_s) / size * 1e6,
        "verdict, us per rank": (ended_s - read_s) / size * 1e6,
        "file, bytes": float(len(texts[0])),
        "bytes per rank": tracemalloc.get_traced_memory()[1] / size,
        "as expected": float(is_found),
    }


def alone(act: Callable[[int], Row], size: int) -> Row:
    """Call it in a new process: memory and process groups of others do not count."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(act, (size,))


def growth(rows: list[Row], column: str) -> float:
    """Return how much larger a column is for most ranks than for fewest."""
    return float(rows[-1][column] or 0) / max(float(rows[0][column] or 0), 1e-9)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    sharded = [alone(shard_as, size) for size in SHARDED]
    planned = [alone(schedule_for, size) for size in COMPUTED]
    judged = [alone(judge_hang_of, size) for size in COMPUTED]
    sheets = [
        Sheet(title="FSDP2, one rank of many", rows=sharded, num_digits=3, note="simulated: a fake group"),
        Sheet(title="schedule of all ranks", rows=planned, num_digits=3),
        Sheet(title="hang analysis of all ranks", rows=judged, num_digits=3),
    ]
    wrong = sum(not row["as expected"] for row in (*sharded, *planned, *judged))
    claims = [
        Claim(text="rows with another result than expected", found=wrong, limit=0),
        Claim(text="sharding: time, 64 to 4,096 ranks", found=growth(sharded, "shard_s"), limit=MAX_GROWTH),
        Claim(text="sharding: memory, 64 to 4,096 ranks", found=growth(sharded, "peak_MiB"), limit=1.2),
        Claim(
            text="schedule: time per rank, 512 to 10,000",
            found=growth(planned, "us per rank"),
            limit=MAX_GROWTH,
        ),
        Claim(
            text="hang verdict: time per rank, 512 to 10,000",
            found=growth(judged, "verdict, us per rank"),
            limit=MAX_GROWTH,
        ),
        Claim(
            text="hang verdict: memory per rank, 512 to 10,000",
            found=growth(judged, "bytes per rank"),
            limit=MAX_GROWTH,
        ),
    ]
    return report("many_ranks", sheets=sheets, claims=claims, as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
