"""Real process groups for benchmarks: forked from one server, watched, ended by id.

Owns the processes, how they meet and how long anybody waits. What they do together is each benchmark's.
"""

import faulthandler
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

PRELOAD = (
    "zoo",
    "truestep.run.train",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint",
    "torchmetrics",
)
COLLECTIVE_TIMEOUT = timedelta(seconds=90)
_JOIN_S = 20.0
_CONTEXT = multiprocessing.get_context("forkserver")
_PROCESSES = threading.Lock()
"""Starting a process polls every other one, and two threads must not read one exit code."""


def prepare() -> None:
    """Say what the server imports before the first process is forked from it."""
    # The server and its children find the benchmarks by this variable only.
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    _CONTEXT.set_forkserver_preload([*PRELOAD])


@dataclass(frozen=True, kw_only=True)
class Seat:
    """What one process of a group knows of itself."""

    rank: int
    size: int
    folder: Path
    pipe: Any

    def tell(self, message: Any) -> None:
        """Send something to the benchmark."""
        self.pipe.send(message)

    def meet(self, name: str) -> None:
        """Join the others in a fresh gloo group, of a name not used before; alone, join nothing."""
        import torch.distributed as dist

        if self.size > 1:
            place = f"file://{self.folder / name}"
            dist.init_process_group(
                "gloo", init_method=place, rank=self.rank, world_size=self.size, timeout=COLLECTIVE_TIMEOUT
            )

    def part(self) -> None:
        """Leave the group."""
        import torch.distributed as dist

        if self.size > 1:
            dist.destroy_process_group()
            # What is left of it must not be found by the garbage collector of a forked loader worker: its
            # threads are not there to be ended, and gloo ends with a segmentation fault.
            gc.collect()


class Group:
    """Processes that were started together; whoever starts a group calls `end`.

    Each calls `function(seat, *args)`, with stderr in a file of its own. An error is exit code 1.
    """

    def __init__(self, function: Callable[..., None], *args: Any, size: int, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._processes: list[Any] = []
        self._pipes: dict[Any, int] = {}
        for rank in range(size):
            ours, theirs = _CONTEXT.Pipe(duplex=False)
            seat = Seat(rank=rank, size=size, folder=folder, pipe=theirs)
            process = _CONTEXT.Process(target=_work, args=(function, seat, args))
            with _PROCESSES:
                process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes[ours] = rank

    @property
    def pids(self) -> list[int]:
        """The process ids, by rank."""
        return [process.pid for process in self._processes]

    @property
    def codes(self) -> list[int | None]:
        """The exit codes, by rank; None for a process that still runs."""
        with _PROCESSES:
            return [process.exitcode for process in self._processes]

    def messages(self, silence_s: float) -> Iterator[tuple[int, Any]]:
        """Yield what processes tell, with their ranks.

        Ends when all have ended, when one has failed, or when nobody has said anything for so long.
        """
        pipes = dict(self._pipes)
        while pipes:
            ready = wait([*pipes], silence_s)
            if not ready:
                return
            for pipe in ready:
                try:
                    yield pipes[pipe], pipe.recv()
                except EOFError:
                    rank = pipes.pop(pipe)
                    self._join(self._processes[rank], _JOIN_S)
                    if self.codes[rank] != 0:
                        return

    def wait_any(self, timeout_s: float) -> bool:
        """Wait until one process has ended, for so long at most; return whether one has."""
        return bool(wait([process.sentinel for process in self._processes], timeout_s))

    def wait_all(self, timeout_s: float) -> bool:
        """Wait until all processes have ended, for so long at most; return whether they have."""
        deadline_s = time.monotonic() + timeout_s
        ended = [self._join(process, deadline_s - time.monotonic()) for process in self._processes]
        return all(ended)

    def kill(self, ranks: list[int]) -> None:
        """SIGKILL, nothing softer."""
        codes = self.codes  # reaped or not: a process id that is not ours any more is never signalled
        for rank in ranks:
            if codes[rank] is None:
                os.kill(self.pids[rank], signal.SIGKILL)

    def show_stacks(self) -> None:
        """Let every process that still runs write where its threads stand to its stderr."""
        for pid, code in zip(self.pids, self.codes, strict=True):
            if code is None:
                os.kill(pid, signal.SIGUSR1)
        time.sleep(1.0)

    def end(self) -> None:
        """Kill whoever is left, their loader workers too, and see them gone."""
        self.kill([*range(len(self._processes))])
        is_gone = self.wait_all(_JOIN_S)
        self._sweep()
        for pipe in self._pipes:
            pipe.close()
        if not is_gone:
            raise SystemExit(f"processes {self.pids} did not end by SIGKILL within {_JOIN_S:.0f} s.")

    def _sweep(self) -> None:
        """Kill what the processes have started: a worker that hangs as it starts does not miss its parent.

        They are known by their stderr, a file in the folder of this group, which no other process has.
        """
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if (entry / "fd" / "2").readlink().is_relative_to(self._folder):
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                continue  # ended meanwhile, or somebody else's

    def errors(self, num_characters: int = 3000) -> str:
        """Return the last lines of every process's stderr."""
        tails = []
        for rank, code in enumerate(self.codes):
            path = _log(self._folder, rank)
            text = path.read_text(errors="replace")[-num_characters:] if path.exists() else ""
            tails.append(f"--- rank {rank}, exit code {code}\n{text}")
        return "\n".join(tails)

    @staticmethod
    def _join(process: Any, timeout_s: float) -> bool:
        if not wait([process.sentinel], max(0.0, timeout_s)):
            return False
        with _PROCESSES:
            process.join()
        return True


def _log(folder: Path, rank: int) -> Path:
    return folder / f"stderr-{rank}.log"


def _work(function: Callable[..., None], seat: Seat, args: tuple[Any, ...]) -> None:
    # Orphaned loader workers complain when their parent is killed; what matters is shown if one fails.
    os.dup2(os.open(_log(seat.folder, seat.rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    end_with_parent()
    multiprocessing.set_start_method("fork", force=True)  # of loader workers, as in a script started by hand
    import torch

    torch.set_num_threads(1)
    try:
        function(seat, *args)
    except BaseException:  # noqa: BLE001 - shown by whoever reads the log
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # a peer that failed must not make this one wait for it


def end_with_parent() -> None:
    """End this process when the one that started it ends: nobody stays behind when a benchmark is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait_for_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait_for_parent, daemon=True).start()
