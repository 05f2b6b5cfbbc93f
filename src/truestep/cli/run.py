"""`truestep run`: several processes of one script, restarted when one is lost.

Owns the policy: what is worth another try, who is named, what Ctrl-C means. Starting the processes and
bringing them together is left to torch's elastic agent, one for each try, made as torchrun makes it.
"""

import inspect
import logging
import os
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from truestep.base.lifetime import end_with_parent
from truestep.cli._help import Command
from truestep.cli._page import ScriptArguments, require_script
from truestep.cli._progress import Progress
from truestep.errors import UsageError
from truestep.watch.launch.command import plain_command

if TYPE_CHECKING:
    from truestep.hang import Cause, Patrol, Verdict

_LOOK_S = 0.05
_END_S = 2.0
"""How long the peers of a lost process may take to end: what they do together can no longer succeed."""
_STOP_S = 60.0
"""How long processes may take to stop at their next step, with a snapshot."""
_HURRY_S = 5.0
_FIRST_LINE_S = 300.0
"""Until the first line about the run: scripts have lines of their own."""

# A process that is killed cannot end its children. The kernel can: each asks to be killed when the thread
# that started it ends, then becomes the script. The environment stays as the user set it.
# What all print alike is wanted once: standard output is the first one's, standard error everybody's.
_BECOME_SCRIPT = """\
import os, sys
launcher, num_processes, restart, max_restarts, *command = sys.argv[1:]
if not end_with_parent(int(launcher)):
    sys.exit(1)
if os.environ["RANK"] != "0":
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
if int(num_processes) > 1:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.update(TORCHELASTIC_RESTART_COUNT=restart, TORCHELASTIC_MAX_RESTARTS=max_restarts)
os.execv(command[0], command)
"""


class _Stop:
    """Ctrl-C, SIGTERM and SIGHUP: counted here, acted on at the next look at the processes."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.times = 0
        # Asked once: later it is torch's agent whose handler is found there.
        self._is_hangup_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN

    def install(self) -> None:
        """Take over the signals; again after each start, as torch's agent takes them for itself."""
        signal.signal(signal.SIGINT, self._remember)
        signal.signal(signal.SIGTERM, self._remember)
        is_ignored = self._is_hangup_ignored  # nohup stays in force
        signal.signal(signal.SIGHUP, signal.SIG_IGN if is_ignored else self._remember)

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number)
        self.times += 1


@dataclass(frozen=True, kw_only=True)
class _Cause:
    """The process that failed first, and how: its exit code, negative when a signal killed it."""

    rank: int
    pid: int
    code: int
    is_frozen: bool = False
    has_raised: bool = False
    """Whether its script raised an error: its traceback is on standard error."""

    @property
    def exit_code(self) -> int:
        return self.code if self.code >= 0 else 128 - self.code

    @property
    def text(self) -> str:
        who = f"rank {self.rank} (pid {self.pid})"
        if self.is_frozen:
            return f"{who} stopped responding and was killed"
        if self.code < 0:
            return f"{who} was killed by {_signal_name(-self.code)}"
        return f"{who} ended with exit code {self.code}"


class _Children:
    """The processes of one try: whether they run, and which of them failed first.

    Looks without reaping (`WNOWAIT`): a process id stays taken, and the agent finds what it expects to find.
    """

    def __init__(self, stop: _Stop, *, lost_peer: int, patrol: "Patrol") -> None:
        self.cause: _Cause | None = None
        self.failed: dict[int, int] = {}
        """The codes of those that had failed before the others were ended, by rank."""
        self._stop = stop
        self._lost_peer = lost_peer
        self._patrol = patrol
        self._pids: dict[int, int] = {}

    def begin(self, pids: dict[int, int]) -> None:
        """Take the processes that the agent has started, by rank."""
        self._pids = dict(pids)

    def have_ended(self) -> bool:
        """Whether all have ended; when one has failed, or a signal came, the others are ended first."""
        if self._stop.received is not None:
            self._end_by_signal(self._stop.received)
            return True
        codes = self._codes()
        if any(codes.values()):
            # Looked at again: one that was lost first may have been looked at just before it was.
            failed = self.failed = {rank: code for rank, code in self._codes().items() if code != 0}
            rank = min(failed, key=lambda rank: self._blame(failed[rank]))
            self._end_rest(_Cause(rank=rank, pid=self._pids[rank], code=failed[rank]))
            return True
        self._report(self._patrol.look())
        return len(codes) == len(self._pids)

    @staticmethod
    def _report(found: "tuple[Verdict, Cause | None] | None") -> None:
        if found is not None:
            from truestep.hang import as_text

            _print(as_text(*found) + "\n  The job still runs. Ctrl-C ends it.")

    def _blame(self, code: int) -> tuple[bool, bool]:
        """Of those that ended between two looks: the killed first, those that only lost a peer last."""
        return code == self._lost_peer, code > 0

    def _end_rest(self, cause: _Cause) -> None:
        self.cause = cause
        self._send(signal.SIGTERM)
        self._wait(_END_S)
        if cause.code == self._lost_peer:
            frozen = min(self._pids.keys() - self._codes().keys(), default=None)
            if frozen is not None:
                self.cause = _Cause(rank=frozen, pid=self._pids[frozen], code=self._lost_peer, is_frozen=True)
        self._kill()

    def _end_by_signal(self, received: signal.Signals) -> None:
        # The scripts know what to do on these two; that the terminal is gone need not cost the last steps.
        number = signal.SIGTERM if received == signal.SIGHUP else received
        if len(self._codes()) < len(self._pids):
            _print(
                f"{received.name} received; waiting up to {_STOP_S:.0f} s for the script to stop. "
                f"Send it again to stop at once"
            )
        times = self._stop.times
        self._send(number)
        self._wait(_STOP_S, until=lambda: self._stop.times > times)
        if self._stop.times > times:
            self._send(number)
            self._wait(_HURRY_S, until=lambda: self._stop.times > times + 1)
        self._kill()

    def _codes(self) -> dict[int, int]:
        """Exit codes of those that have ended, by rank; negative: the signal."""
        codes = {}
        for rank, pid in self._pids.items():
            status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if status is not None:
                codes[rank] = status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
        return codes

    def _wait(self, limit_s: float, *, until: Callable[[], bool] = lambda: False) -> None:
        deadline_s = time.monotonic() + limit_s
        while len(self._codes()) < len(self._pids) and time.monotonic() < deadline_s and not until():
            time.sleep(_LOOK_S / 2)

    def _send(self, number: signal.Signals) -> None:
        """To the processes themselves, not to their groups: loader workers are theirs to end.

        Ctrl-C goes to the first one as it is; for the others it is SIGTERM, so that a script which does not
        handle it shows one traceback, as it does alone.
        """
        ended = self._codes()
        for rank, pid in self._pids.items():
            if rank not in ended:
                os.kill(pid, number if rank == 0 else signal.SIGTERM)

    def _kill(self) -> None:
        """End what is left of each process and of everything it started in its group."""
        for pid in self._pids.values():
            try:
                os.killpg(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue  # nothing left but the process that ended; not every system lets it be signalled
        self._wait(_HURRY_S)


@dataclass(frozen=True, kw_only=True)
class _Try:
    """One start of all processes."""

    num_processes: int
    restart: int
    max_restarts: int
    script: Path
    script_arguments: tuple[str, ...]

    @property
    def words(self) -> str:
        """What the progress line says of it."""
        again = f", restart {self.restart} of {self.max_restarts}" if self.restart else ""
        return f"running {self.script.name} in {_count(self.num_processes)}{again}"

    def command(self, folder: Path) -> list[str]:
        """Return what a process runs; one of several writes into the folder where it stands."""
        if self.num_processes == 1:
            return [sys.executable, "-u", str(self.script), *self.script_arguments]
        return plain_command(self.script, self.script_arguments, folder=folder)

    def arguments(self, folder: Path) -> list[str]:
        """Return what the Python that becomes the script is given."""
        numbers = (os.getpid(), self.num_processes, self.restart, self.max_restarts)
        code = inspect.getsource(end_with_parent) + _BECOME_SCRIPT
        arguments = ["-I", "-S", "-c", code, *map(str, numbers), *self.command(folder)]
        # The agent replaces ${local_rank} in arguments, and $$ by $: these are the script's own.
        return [argument.replace("$", "$$") for argument in arguments]


def _build_agent(attempt: _Try, children: _Children, *, stop: _Stop, folder: str) -> Any:
    """Return torch's agent, which asks us whether its processes have ended.

    Left alone it would give the peers of a lost process 30 s to end, and nothing to set that by.
    """
    from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    class Agent(LocalElasticAgent):
        def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
            pids: dict[int, Any] = super()._start_workers(worker_group)
            stop.install()
            children.begin(pids)
            return pids

        def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
            if not children.have_ended():
                return RunResult(state=WorkerState.HEALTHY)
            result: RunResult = super()._monitor_workers(worker_group)
            return result

    rendezvous = RendezvousParameters(
        backend="c10d",
        endpoint="localhost:0",
        run_id=str(uuid.uuid4()),
        min_nodes=1,
        max_nodes=1,
        local_addr="localhost",  # a laptop's own name does not always lead back to it
    )
    spec = WorkerSpec(
        role="truestep",
        local_world_size=attempt.num_processes,
        entrypoint=sys.executable,
        args=tuple(attempt.arguments(Path(folder))),
        rdzv_handler=get_rendezvous_handler(rendezvous),
        # A restart inside of one agent meets the addresses of the dead processes in its store, and fails to
        # connect (torch 2.13): a try is an agent of its own, with a store of its own.
        max_restarts=0,
        monitor_interval=_LOOK_S,
        local_addr="localhost",
    )
    return Agent(spec, logs_specs=DefaultLogsSpecs(log_dir=folder))


def _run_once(attempt: _Try, stop: _Stop) -> _Cause | None:
    """Run all processes to their end; return the one that failed first, if any."""
    from torch.distributed.elastic.multiprocessing import SignalException

    from truestep.hang import Patrol, as_text
    from truestep.run.dist.pulse import LOST_PEER

    with tempfile.TemporaryDirectory(prefix="truestep-run-") as folder:
        patrol = Patrol(Path(folder))
        children = _Children(stop, lost_peer=LOST_PEER, patrol=patrol)
        agent = _build_agent(attempt, children, stop=stop, folder=folder)
        try:
            agent.run()
        except SignalException as error:
            # Torch's own handlers are in force for the moment in which it starts the processes. Those that it
            # does not know of yet end with this one.
            stop.received = stop.received or error.sigval
        finally:
            agent.get_worker_group().spec.rdzv_handler.shutdown()
        cause = children.cause
        if cause is None:
            return None
        explained = None if cause.is_frozen else patrol.explain_failure(children.failed)
        if explained is not None:
            _print(as_text(*explained))
        return replace(cause, has_raised=patrol.has_raised(cause.rank))


def _run_until_done(
    script: Path,
    arguments: tuple[str, ...],
    *,
    processes: int,
    min_processes: int,
    max_restarts: int,
    progress: Progress,
) -> int:
    """Run, run again what is worth it, with fewer processes in the end; return the exit code."""
    stop = _Stop()
    stop.install()
    _quieten_agent()
    from truestep.run.dist.pulse import LOST_PEER

    num, restart = processes, 0
    while stop.received is None:
        attempt = _Try(
            num_processes=num,
            restart=restart,
            max_restarts=max_restarts,
            script=script,
            script_arguments=arguments,
        )
        progress.status(attempt.words)
        cause = _run_once(attempt, stop)
        if stop.received is not None:
            break
        if cause is None:
            return 0
        if cause.code > 0 and cause.code != LOST_PEER:
            _print(f"{cause.text}{'; its traceback is above' if cause.has_raised else ''}")
            return cause.exit_code
        if restart < max_restarts:
            restart += 1
            again = "restarting from the last snapshot, if there is one"
            next_ = f"{again} (restart {restart} of {max_restarts})"
        elif num > min_processes:
            num, restart = num - 1, 0
            next_ = f"no restarts left, restarting with {_count(num)}"
        else:
            _print(f"{cause.text}; no restarts left (--max-restarts {max_restarts})")
            return cause.exit_code
        _print(f"{cause.text}; {next_}")
    assert stop.received is not None
    return 128 + stop.received


def _quieten_agent() -> None:
    """What torch's agent has to say, we say in one line."""
    logger = logging.getLogger("torch.distributed.elastic")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False


def _check(script: Path, *, processes: int, min_processes: int, max_restarts: int) -> None:
    if processes < 1:
        raise UsageError(f"a run needs at least 1 process, got -n {processes}. Pass -n 1 or more.")
    if not 1 <= min_processes <= processes:
        raise UsageError(
            f"--min-n must be from 1 to the number of processes, got --min-n {min_processes} with "
            f"-n {processes}. Pass --min-n {processes} or less, or leave it out to never continue with fewer."
        )
    if max_restarts < 0:
        raise UsageError(f"--max-restarts must be 0 or more, got {max_restarts}. Pass 0 to never restart.")
    require_script(script, example="truestep run -n 2 train.py --lr 0.1")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _count(num: int) -> str:
    return "1 process" if num == 1 else f"{num} processes"


def _print(line: str) -> None:
    # A process that was killed may have left half a line, and the cursor hidden.
    reset = "\r\x1b[K\x1b[?25h" if sys.stderr.isatty() else ""
    print(f"{reset}truestep: {line}", file=sys.stderr, flush=True)


def run(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="The training script.")],
    arguments: ScriptArguments = None,
    *,
    processes: Annotated[int, typer.Option("-n", metavar="N", help="How many processes.")] = 1,
    min_processes: Annotated[
        int | None,
        typer.Option(
            "--min-n",
            metavar="N",
            help="When no restarts are left, continue with one process fewer, down to N.",
            show_default="same as -n",
        ),
    ] = None,
    max_restarts: Annotated[
        int,
        typer.Option(metavar="N", help="How often to restart after a process was killed or lost."),
    ] = 3,
) -> None:
    """Run a script in several processes; restart if one is lost.

    The processes run on this machine and find each other as under torchrun. Use torchrun for several machines
    (docs/scale.md). If a process is killed or stops responding, all of them restart, and a script that uses
    truestep.Run resumes from its last snapshot. An error raised by the script ends the run at once, because
    it would happen again. Options of truestep come before SCRIPT.

    On Ctrl-C a script that uses truestep.Run saves a snapshot and stops at its next step. Standard output
    comes from the first process, standard error from all.

    Exit codes:
      0      all processes ended normally
      2      bad usage
      N      the exit code of the process that failed first
      128+N  signal N killed that process, or ended the run

    Examples:
      truestep run -n 4 train.py --epochs 5              the script gets --epochs 5
      truestep run -n 4 --max-restarts 10 train.py
      truestep run -n 4 --min-n 2 train.py               continue with 3, then 2
    """
    min_processes = processes if min_processes is None else min_processes
    _check(script, processes=processes, min_processes=min_processes, max_restarts=max_restarts)
    with Progress(f"starting {_count(processes)} of {script.name}", first_line_s=_FIRST_LINE_S) as progress:
        code = _run_until_done(
            script,
            tuple(arguments or ()),
            processes=processes,
            min_processes=min_processes,
            max_restarts=max_restarts,
            progress=progress,
        )
    raise typer.Exit(code)


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command(cls=Command, context_settings={"allow_interspersed_args": False})(run)
