"""A job that was started without us: the stacks of its processes, read from outside by py-spy.

Owns finding the ranks and their loader workers, and turning stacks into the facts that `verdict` takes. What
torch has recorded is out of reach: collectives are known by the functions on the stack alone.
"""

import json
import shutil
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from truestep.errors import UsageError
from truestep.watch.evidence import kernel
from truestep.watch.evidence.kinds import Place
from truestep.watch.evidence.stalls import INIT, NEW_GROUP, Collective, Doing, Standing

_LOOK_S = 2.0
"""For how long the threads must not have run to count as standing still."""
_PATIENCE_S = 60.0
_NOT_OWN = ("/site-packages/", "/dist-packages/", "/lib/python3", "\\lib\\")
_DISTRIBUTED = "torch/distributed/"
_PAIRS = ("recv", "send", "irecv", "isend")
_PASSED = ("wrapper", "inner", "_wrapped_call_impl", "_call_impl")
_LOADER = "torch/utils/data/dataloader.py"
_DEBUGGERS = ("pdb.py", "bdb.py", "cmd.py")
_BACKWARD = "_engine_run_backward"


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A process that a rank has started, as loaders do."""

    rank: int
    pid: int
    place: Place | None
    call: str
    is_locked: bool


@dataclass(frozen=True, kw_only=True)
class Job:
    """All ranks of a job, and their workers."""

    standings: list[Standing]
    workers: list[Worker]
    unread: list[str]
    """Why the stack of a process is missing."""


@dataclass(frozen=True, kw_only=True)
class _Frame:
    name: str
    file: str
    line: int

    @property
    def is_own(self) -> bool:
        return not self.file.startswith("<") and not any(part in self.file for part in _NOT_OWN)


def read_job(pid: int) -> Job:
    """Return where every rank of the job of a process stands: its launcher, or any of its ranks."""
    if sys.platform != "linux":
        raise UsageError(
            "attach needs Linux: it reads /proc to see in which call each thread waits. On this system, run "
            "`py-spy dump --pid PID` for each process."
        )
    if not kernel.state_of(pid):
        raise UsageError(f"there is no process {pid}. Pass the pid of torchrun, or of one of its processes.")
    spy = _find_spy()
    ranks = find_ranks(pid)
    before = {item: kernel.switches_of(item) for item in ranks.values()}
    time.sleep(_LOOK_S)
    still = {item for item in ranks.values() if kernel.switches_of(item) == before[item] and before[item]}
    standings, workers, unread = [], [], []
    for rank, process in sorted(ranks.items()):
        try:
            threads = _stacks(spy, process)
        except OSError as error:
            unread.append(f"rank {rank} (pid {process}): {error}")
            threads = []
        mine = [_worker(spy, rank, child) for child in _workers_of(process)]
        workers += mine
        known = _Process(
            rank=rank,
            pid=process,
            frames=_frames(threads[0]) if threads else [],
            threads=threads,
            workers=mine,
            is_still=process in still,
        )
        standings.append(_standing(known, ranks))
    return Job(standings=standings, workers=workers, unread=unread)


def find_ranks(pid: int) -> dict[int, int]:
    """Return the processes of a job by rank; those without a rank in their environment are numbered."""
    root = pid
    for _ in range(8):  # from a rank, or a worker of one, up to the launcher
        parent = kernel.parent_of(root)
        if parent <= 1 or "RANK" not in kernel.environment_of(root):
            break
        root = parent
    found: dict[int, int] = {}
    waiting = [root]
    while waiting:
        process = waiting.pop(0)
        rank = kernel.environment_of(process).get("RANK", "")
        if rank.isdecimal():
            found.setdefault(int(rank), process)  # breadth first: its workers have the same variable
        waiting += kernel.children_of(process)
    if found:
        return found
    children = [item for item in kernel.children_of(pid) if _is_python(item)]
    return dict(enumerate(children or [pid]))


def _is_python(pid: int) -> bool:
    words = kernel.words_of(pid)
    return bool(words) and "python" in Path(words[0]).name and "resource_tracker" not in " ".join(words)


def _workers_of(pid: int) -> list[int]:
    return [child for child in kernel.children_of(pid) if _is_python(child)]


def _find_spy() -> str:
    beside = Path(sysconfig.get_path("scripts")) / "py-spy"
    found = str(beside) if beside.is_file() else shutil.which("py-spy")
    if found is None:
        raise UsageError("attach needs py-spy. Install it: pip install 'truestep[attach]'")
    return found


def _stacks(spy: str, pid: int) -> list[dict[str, Any]]:
    """Return the threads of a process, the main one first."""
    words = [spy, "dump", "--json", "--pid", str(pid)]
    if kernel.is_stopped(pid):
        words.append("--nonblocking")
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_PATIENCE_S)
    except subprocess.TimeoutExpired as error:
        raise OSError("py-spy gave no answer") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise OSError(lines[-1] if lines else f"py-spy ended with exit code {done.returncode}")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return sorted(found, key=lambda thread: thread.get("os_thread_id") != pid)


def _frames(thread: dict[str, Any]) -> list[_Frame]:
    return [
        _Frame(name=str(item["name"]).rpartition(".")[2], file=str(item["filename"]), line=int(item["line"]))
        for item in thread["frames"]
    ]


def _worker(spy: str, rank: int, pid: int) -> Worker:
    try:
        threads = _stacks(spy, pid)
    except OSError:
        threads = []
    frames = _frames(threads[0]) if threads else []
    is_locked = kernel.is_locked_up(pid)
    return Worker(rank=rank, pid=pid, place=_place(frames), call=_call(frames), is_locked=is_locked)


@dataclass(frozen=True, kw_only=True)
class _Process:
    """What is known of one rank from outside."""

    rank: int
    pid: int
    frames: list[_Frame]
    threads: list[dict[str, Any]]
    workers: list[Worker]
    is_still: bool


def _standing(process: _Process, ranks: dict[int, int]) -> Standing:
    frames = process.frames
    own = tuple(Place(item.file, item.line, item.name) for item in frames if item.is_own)
    how = _find_block(process)
    is_waiting = not how and process.is_still and _is_waiting(process)
    doing: Doing = "stuck" if how else "waiting" if is_waiting else "living"
    return Standing(
        rank=process.rank,
        size=len(ranks),
        pid=process.pid,
        doing=doing,
        how=how,
        since_s=_LOOK_S if process.is_still else 0.0,
        stack=own,
        call=_call(frames),
        pending=_pending(frames, rank=process.rank, ranks=ranks) if is_waiting else None,
    )


def _find_block(process: _Process) -> str:
    """Return what a process waits for in vain; nothing if it may continue, or that is not certain."""
    frames, pid = process.frames, process.pid
    if kernel.is_stopped(pid):
        return "stopped"
    if not frames or not process.is_still:
        return ""
    wait, file = kernel.wait_of(pid)
    is_debugged = any(item.file.endswith(_DEBUGGERS) for item in frames)
    if (wait == "read" and file == 0) or (wait in ("read", "poll") and is_debugged):
        return "input"
    if any(item.file.endswith(_LOADER) for item in frames):
        return "loader" if any(item.is_locked for item in process.workers) else ""
    others = [thread.get("os_thread_id") for thread in process.threads[1:]]
    is_lock = wait == "lock" and "/torch/" not in frames[0].file
    return "lock" if is_lock and all(_is_locked(pid, other) for other in others) else ""


def _is_waiting(process: _Process) -> bool:
    wait, _ = kernel.wait_of(process.pid)
    return _is_in_collective(process.frames) and wait not in ("sleep", "read", "child", "running")


def _is_locked(pid: int, thread: Any) -> bool:
    return isinstance(thread, int) and kernel.wait_of(pid, thread=thread)[0] == "lock"


def _is_in_collective(frames: list[_Frame]) -> bool:
    inner = _library_frames(frames)
    return any(_DISTRIBUTED in item.file for item in inner) or (bool(inner) and inner[0].name == _BACKWARD)


def _library_frames(frames: list[_Frame]) -> list[_Frame]:
    """Return the frames that the user's innermost line has called, innermost first."""
    for number, item in enumerate(frames):
        if item.is_own:
            return frames[:number]
    return frames


def _pending(frames: list[_Frame], *, rank: int, ranks: dict[int, int]) -> Collective:
    """Return the collective by its function. Its number is not known: equal ones count as the same."""
    inner = [item for item in _library_frames(frames) if item.name not in _PASSED]
    calls = [item for item in inner if _DISTRIBUTED in item.file] or inner
    name = calls[-1].name if calls else "a collective"
    everyone = tuple(sorted(ranks))
    if name in _PAIRS:
        others = tuple(item for item in everyone if item != rank)
        members = others if len(others) == 1 else ()
        return Collective(group="pairs", number=0, name=name.removeprefix("i"), members=members, is_pair=True)
    if name in (INIT, NEW_GROUP):
        return Collective(group=name, number=0, name=name, members=everyone)
    name = "backward" if name == _BACKWARD else name
    return Collective(group="0", number=0, name=name, members=everyone, place=_place(frames))


def _place(frames: list[_Frame]) -> Place | None:
    return next((Place(item.file, item.line, item.name) for item in frames if item.is_own), None)


def _call(frames: list[_Frame]) -> str:
    inner = _library_frames(frames)
    if len(inner) == len(frames):
        return ""
    if any(item.file.startswith("<frozen importlib") for item in inner):
        return "import"
    names = [item.name for item in inner if item.name not in _PASSED]
    return names[-1] if names else ""
