"""Real processes for tests: one function on several ranks of one gloo group.

They are forked from a server that has torch imported already: starting eight takes no longer than one.
"""

import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "torch.distributed.fsdp",
        "torch.distributed.checkpoint",
        "torch._dynamo",
        "torchmetrics",
        "truestep.run.train",
        "truestep.run.dist",
    ]
)


def _work(function: Callable[..., Any], rank: int, size: int, store: str, pipe: Any, args: Any) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
        pipe.send((True, function(*args)))
    except BaseException:  # noqa: BLE001 - sent to the test, which fails with it
        pipe.send((False, traceback.format_exc()))
    finally:
        pipe.close()
        os._exit(0)  # a peer that failed must not make this one wait for it


def run_processes(function: Callable[..., Any], *args: Any, size: int, timeout_s: float = 120.0) -> list[Any]:
    """Return what a function at the top of a module returns on each rank of a fresh gloo group.

    What it is given and returns is pickled; tensors should go back as lists, digests or NumPy arrays.
    A rank that raises, dies or hangs fails the test with its traceback.
    """
    with tempfile.TemporaryDirectory() as folder:
        processes, pipes = [], []
        for rank in range(size):
            ours, theirs = _CONTEXT.Pipe(duplex=False)
            arguments = (function, rank, size, str(Path(folder, "store")), theirs, args)
            process = _CONTEXT.Process(target=_work, args=arguments, daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        try:
            return _collect(pipes, timeout_s)
        finally:
            for process in processes:
                process.kill()
                process.join()


def _collect(pipes: list[Any], timeout_s: float) -> list[Any]:
    results: dict[int, Any] = {}
    failures: list[str] = []
    deadline_s = time.monotonic() + timeout_s
    while len(results) < len(pipes):
        open_pipes = [pipe for rank, pipe in enumerate(pipes) if rank not in results]
        ready = wait(open_pipes, max(0.0, deadline_s - time.monotonic()))
        if not ready:
            missing = sorted(set(range(len(pipes))) - set(results))
            raise TimeoutError(f"ranks {missing} gave no answer within {timeout_s} s")
        for pipe in ready:
            rank = pipes.index(pipe)
            try:
                is_good, results[rank] = pipe.recv()
            except EOFError:
                raise RuntimeError(f"rank {rank} died without an answer") from None
            if not is_good:
                failures.append(f"rank {rank} failed:\n{results[rank]}")
        if failures:  # of all that have answered: the first one may have failed because of another
            raise RuntimeError("\n".join(failures))
    return [results[rank] for rank in range(len(pipes))]
