"""Processes with torch imported already, from which runs of a script are forked.

Owns asking for a run and following it. What such a process does is in `script.preload`. Two runs that are
compared come from two of them: forks of one have its hash seed and its addresses, and would hide what depends
on those.
"""

import array
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from truestep.watch.launch.command import Script, before, settings_of
from truestep.watch.launch.leading import HEAD, leading_imports
from truestep.watch.plan import Plan

_CODE = (
    "import sys; sys.flags.safe_path or sys.path.pop(0); "
    "from truestep.watch.script.preload import serve as exec_script; exec_script({settings!r})"
)


class Forked:
    """A run that was forked: what `subprocess.Popen` is for one that was started."""

    def __init__(self, pid: int, owner: "Preloaded") -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._owner = owner

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code, as `Popen.wait` does."""
        if self.returncode is None:
            answer = self._owner.receive(timeout)
            if answer is None:
                assert timeout is not None
                raise subprocess.TimeoutExpired("forked", timeout)
            self.returncode = os.waitstatus_to_exitcode(answer.get("status", signal.SIGKILL))
        return self.returncode

    def terminate(self) -> None:
        """Ask it to end."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGTERM)


class Preloaded:
    """One process that has imported torch, for one environment."""

    def __init__(
        self,
        script: Script,
        *,
        folder: Path,
        environment: Mapping[str, str | None],
        frozen: Sequence[str],
    ) -> None:
        self._folder = folder
        self._channel, theirs = socket.socketpair()
        imports = [] if script.is_module else leading_imports(str(folder / script.path))
        code = _CODE.format(settings={"imports": imports})
        words = [*before(environment, frozen), sys.executable, "-c", code]
        self._process = subprocess.Popen(
            words, cwd=folder, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        theirs.close()
        self._buffer = b""
        self._reason: str | None = None

    def wait(self) -> str:
        """Wait until it is ready; return why it cannot be forked, if so."""
        if self._reason is None:
            answer = self.receive(None) or {}
            self._reason = answer.get("reason", "the process that imports torch ahead has ended")
        return self._reason

    def start(  # limits: three streams
        self,
        script: Script,
        *,
        plan: Plan,
        folder: Path,
        stdout: IO[Any],
        stderr: IO[Any],
        stdin: IO[Any] | None = None,
    ) -> Forked | None:
        """Fork a run as `command.start` starts one; None if the process is gone."""
        if script.device is not None:
            plan = replace(plan, cuda_devices=1)
        request = settings_of(script.path, plan=plan, folder=folder, module=script.is_module)
        request |= {"cwd": str(self._folder), "arguments": script.arguments}
        text = json.dumps(request).encode()
        with stdin or _own_stdin() as given:
            numbers = array.array("i", [given.fileno(), stdout.fileno(), stderr.fileno()])
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)]
            try:
                self._channel.sendmsg([HEAD.pack(len(text))], ancillary)
                self._channel.sendall(text)
            except OSError:
                return None
        answer = self.receive(None)
        return Forked(answer["pid"], self) if answer else None

    def receive(self, timeout_s: float | None) -> dict[str, Any] | None:
        """Return the next answer: empty if the process has ended, None if the time is up."""
        while b"\n" not in self._buffer:
            with selectors.DefaultSelector() as selector:
                selector.register(self._channel, selectors.EVENT_READ)
                if not selector.select(timeout_s):
                    return None
            more = self._channel.recv(4096)
            if not more:
                return {}
            self._buffer += more
        line, self._buffer = self._buffer.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End it."""
        self._channel.close()
        self._process.terminate()
        self._process.wait()


class Pool:
    """Preloaded processes for the runs of one script: by environment, and by the side of a comparison."""

    def __init__(self, script: Script, folder: Path) -> None:
        self._script = script
        self._folder = folder
        self._processes: dict[tuple[Any, ...], dict[int, Preloaded]] = {}
        self.reason = (
            "" if sys.platform == "linux" else "a process that has imported torch is forked on Linux only"
        )
        """Why runs are started cold; empty while they are not."""

    def prepare(self, side: int, *, environment: Mapping[str, str | None], frozen: Sequence[str]) -> None:
        """Begin to import torch for a run that is to come."""
        if self.reason:
            return
        key = _key(environment, frozen)
        if key not in self._processes and len(self._processes) > 1:
            self._close(list(self._processes)[-1])  # the first has the unmodified runs, which come again
        sides = self._processes.setdefault(key, {})
        if side not in sides:
            for old in [number for number in sides if 0 < number < side - 1]:
                sides.pop(old).close()  # its run was the same as the first
            sides[side] = Preloaded(self._script, folder=self._folder, environment=environment, frozen=frozen)

    def wait(
        self, side: int, *, environment: Mapping[str, str | None], frozen: Sequence[str]
    ) -> Preloaded | None:
        """Return the process for a run, ready; None if the run has to be a cold start."""
        self.prepare(side, environment=environment, frozen=frozen)
        if self.reason:
            return None
        key = _key(environment, frozen)
        process = self._processes[key][side]
        self.reason = process.wait()
        return None if self.reason else process

    def give_up(self, reason: str) -> None:
        """Start all further runs cold."""
        self.reason = reason
        self.close()

    def close(self) -> None:
        """End all processes."""
        for key in list(self._processes):
            self._close(key)

    def _close(self, key: tuple[Any, ...]) -> None:
        for process in self._processes.pop(key).values():
            process.close()


def _key(environment: Mapping[str, str | None], frozen: Sequence[str]) -> tuple[Any, ...]:
    """Return what is settled before Python starts."""
    return (*sorted(environment.items()), *sorted({"hash", "addresses"} & set(frozen)))


def _own_stdin() -> IO[Any]:
    """What a cold start would inherit."""
    try:
        return os.fdopen(os.dup(0), "rb")
    except OSError:
        return open(os.devnull, "rb")  # noqa: PTH123
