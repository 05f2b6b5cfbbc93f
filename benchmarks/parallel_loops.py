"""The loops that parallel_cost.py compares: bare DDP and FSDP2 as one would write them, and truestep's.

Owns models, loops and the processes they run in. Taking turns, judging and printing are parallel_cost.py's.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import queue
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from overhead_loops import Settings
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

import truestep as ts

Pair = tuple[Tensor, Tensor]
Loop = Callable[[int], None]
"""Trains so many steps."""

NUM_BATCHES = 32
CLIP_NORM, LR = 1e-3, 1e-6
"""Small: every step is clipped, and the model stays where it is, so that all turns do the same work."""


class Transformer(nn.Module):
    """Pre-norm encoder blocks over embedded tokens, and a head."""

    def __init__(self, *, width: int, num_blocks: int, num_tokens: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(num_tokens, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 4, 4 * width, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(num_blocks)
        )
        self.head = nn.Linear(width, num_tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x).transpose(1, 2)


class Wide(nn.Module):
    """Square layers: as many parameters as one likes, and hardly anything to compute with a tiny batch."""

    def __init__(self, *, width: int, num_blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(num_blocks))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + F.relu(block(x))
        return x


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is trained, and how many steps a turn takes."""

    name: str
    make_model: Callable[[], nn.Module]
    make_batch: Callable[[torch.Generator], Pair]
    num_steps: int
    limit: float
    """The goal: at most so many times the bare loop's time."""


def make_tokens(source: torch.Generator) -> Pair:
    tokens = torch.randint(0, 256, (8, 65), generator=source)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def make_vectors(source: torch.Generator) -> Pair:
    return torch.randn(2, 1024, generator=source), torch.randint(0, 1024, (2,), generator=source)


TASKS: Mapping[str, Task] = {
    "compute": Task(
        name="compute-bound",
        make_model=lambda: Transformer(width=192, num_blocks=4, num_tokens=256),
        make_batch=make_tokens,
        num_steps=2,
        limit=1.05,
    ),
    "communication": Task(
        name="communication-bound",
        make_model=lambda: Wide(width=1024, num_blocks=12),
        make_batch=make_vectors,
        num_steps=2,
        limit=1.20,
    ),
}


class Bench:
    """One process's contenders on one task. What is to be closed is closed with `resources`."""

    def __init__(self, task: Task, root: Path) -> None:
        self.task, self.root = task, root
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        source = torch.Generator().manual_seed(1)
        self.batches = [task.make_batch(source) for _ in range(NUM_BATCHES)]
        self.resources = ExitStack()

    def make_model(self) -> nn.Module:
        torch.manual_seed(0)
        return self.task.make_model()

    def own_batches(self) -> itertools.cycle[Pair]:
        """What this process computes: as much as one lane."""
        return itertools.cycle(self.batches[self.rank :: self.size])

    def open_run(self, name: str, *, lanes: int | None) -> ts.Run:
        run = ts.Run(
            self.root / name, seed=0, lanes=lanes, snapshots=ts.Snapshots(every_s=None), progress=False
        )
        self.resources.callback(run.close)
        return run


def _train(model: nn.Module, optimizer: AdamW, bench: Bench) -> Loop:
    """The bare loop. Nothing is printed, checked or written."""
    batches, parameters = bench.own_batches(), list(model.parameters())

    def train(num_steps: int) -> None:
        for x, y in itertools.islice(batches, num_steps):
            F.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(parameters, CLIP_NORM, foreach=True)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return train


def bare_ddp(bench: Bench) -> Loop:
    model = DistributedDataParallel(bench.make_model(), gradient_as_bucket_view=True)
    return _train(model, AdamW(model.parameters(), lr=LR, fused=True), bench)


def _bare_fsdp(bench: Bench, **options: bool) -> Loop:
    model = bench.make_model()
    mesh = init_device_mesh("cpu", (bench.size,))
    for block in model.get_submodule("blocks").children():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return _train(model, AdamW(model.parameters(), lr=LR, **options), bench)


def bare_fsdp(bench: Bench) -> Loop:
    return _bare_fsdp(bench, foreach=True)


def bare_fsdp_fused(bench: Bench) -> Loop:
    return _bare_fsdp(bench, fused=True)


def _truestep(bench: Bench, name: str, *, lanes: int | None, parallel: Any, **options: bool) -> Loop:
    run = bench.open_run(name, lanes=lanes)
    model = run.place(bench.make_model(), parallel=parallel)
    optimizer = AdamW(model.parameters(), lr=LR, **options)
    run.track(model=model, optimizer=optimizer)
    # Each item is a lane's batch, as it is for the bare loop: what is compared is not the fetching of data.
    steps = run.steps(ts.Loader(bench.batches, batch_size=None, drop_last=True), steps=10**9)

    def train(num_steps: int) -> None:
        for step in itertools.islice(steps, num_steps):
            for x, y in step:
                step.backward(F.cross_entropy(model(x), y))
            step.update(optimizer, clip_norm=CLIP_NORM)

    return train


def truestep_ddp(bench: Bench) -> Loop:
    return _truestep(bench, "ddp", lanes=bench.size, parallel="ddp", fused=True)


def truestep_plain(bench: Bench) -> Loop:
    return _truestep(bench, "plain", lanes=None, parallel="ddp", fused=True)


def truestep_flat(bench: Bench) -> Loop:
    return _truestep(bench, "flat", lanes=bench.size, parallel="flat", fused=True)


def truestep_fsdp(bench: Bench) -> Loop:
    return _truestep(bench, "fsdp", lanes=bench.size, parallel="fsdp", foreach=True)


LOOPS: Mapping[str, Callable[[Bench], Loop]] = {
    "ddp": bare_ddp,
    "truestep ddp": truestep_ddp,
    "truestep flat": truestep_flat,
    "truestep, lanes left out": truestep_plain,
    "fsdp2": bare_fsdp,
    "fsdp2, fused AdamW": bare_fsdp_fused,
    "truestep fsdp": truestep_fsdp,
}
BARE_OF: Mapping[str, str] = {
    "truestep ddp": "ddp",
    "truestep flat": "ddp",
    "truestep, lanes left out": "ddp",
    "truestep fsdp": "fsdp2",
    "fsdp2, fused AdamW": "fsdp2",
}
"""What each is compared with. Fused AdamW gives other bits for other shards: truestep fsdp refuses it."""


def contend(bench: Bench, name: str) -> Loop:
    """Make a contender whose turns run under the switches of torch that it has set itself, if any."""
    plain = Settings.now()
    loop = LOOPS[name](bench)
    own = Settings.now()
    plain.apply()

    def turn(num_steps: int) -> None:
        own.apply()
        loop(num_steps)
        plain.apply()

    return turn


_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "torch.distributed", "torch.distributed.fsdp", "truestep.train"])


def _work(function: Callable[..., Any], rank: int, size: int, port: int, answers: Any, args: Any) -> None:
    torch.set_num_threads(1)
    try:
        # Over TCP, as torchrun has it.
        dist.init_process_group("gloo", init_method=f"tcp://localhost:{port}", rank=rank, world_size=size)
        answers.put((rank, function(*args), None))
        answers.close()
        answers.join_thread()
        dist.barrier()  # the first process holds the store of all
    except BaseException:  # noqa: BLE001 - handed on
        answers.put((rank, None, traceback.format_exc()))
        answers.close()
        answers.join_thread()
    os._exit(0)


def run_processes(function: Callable[..., Any], *args: Any, size: int, timeout_s: float = 600.0) -> list[Any]:
    """Return what a function returns on each process of a fresh group, in order of rank."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    answers = _CONTEXT.Queue()
    processes = [
        _CONTEXT.Process(target=_work, args=(function, rank, size, port, answers, args), daemon=True)
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    results: dict[int, Any] = {}
    deadline_s = time.monotonic() + timeout_s
    try:
        while len(results) < size:
            rank, result, failure = _next_answer(answers, processes, deadline_s=deadline_s)
            if failure is not None:
                raise RuntimeError(f"process {rank} failed:\n{failure}")
            results[rank] = result
    finally:
        for process in processes:
            process.join(timeout=5 if len(results) == size else 0)
            process.kill()
    return [results[rank] for rank in range(size)]


def _next_answer(answers: Any, processes: list[Any], *, deadline_s: float) -> Any:
    while time.monotonic() < deadline_s:
        try:
            return answers.get(timeout=1.0)
        except queue.Empty:
            if any(process.exitcode not in (None, 0) for process in processes):
                raise RuntimeError("a process died without an answer") from None
    raise TimeoutError("the processes did not answer in time")
