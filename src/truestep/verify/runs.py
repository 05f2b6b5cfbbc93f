"""Running a script in a way, and what is left of it: updates of each process, in order.

Owns what is started in which folder, and the kill. Comparing is left to `chains`.
"""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from truestep import watch
from truestep.verify.ways import Way
from truestep.watch.launch import following
from truestep.watch.launch.following import OnStep, ignore_steps
from truestep.watch.launch.scratch import Scratch, tail_of

Settings = tuple[tuple[str, Any], ...]


@dataclass(kw_only=True)
class Ran:
    """One run: its processes by rank, and those of the try before the kill, if there was one."""

    way: Way
    code: int
    processes: list[watch.Process]
    before_kill: list[watch.Process]
    tail: str
    seconds: float

    @property
    def first(self) -> watch.Process | None:
        """The process of rank 0."""
        return self.processes[0] if self.processes else None

    @property
    def updates(self) -> list[watch.Update]:
        """The updates of rank 0: of a resumed run those after the resume."""
        return self.first.updates if self.first else []


@dataclass(kw_only=True)
class Runner:
    """Runs one script again and again, each time in a fresh copy of the working folder."""

    script: watch.Script
    scratch: Scratch
    steps: int | None
    show: IO[Any] | None = None
    """Where the script's own output goes in the first run; that of later ones is kept for their errors."""
    on_step: OnStep = ignore_steps
    is_portable: bool = False
    """Whether runs can be compared with those of another version."""
    deadline_s: float | None = None
    """Until when runs may last, by the monotonic clock."""
    num_steps: int | None = None
    """How many steps the script makes, once a run has shown it."""
    num_runs: int = 0
    folder: Path | None = None
    """Where the evidence of the last start is."""

    def run(
        self,
        way: Way,
        *,
        plan: watch.Plan | None = None,
        kill_at: int | None = None,
        resume_arguments: tuple[str, ...] = (),
        resumed_settings: Settings = (),
    ) -> Ran:
        """Run the script in a way to its end, or to the last step that is wanted.

        With `kill_at` it is killed after that many steps first, or before by the plan's settings, and then
        started again in the same folder, with `resume_arguments` after its own and settings of its own.
        """
        begun = time.monotonic()
        plan = plan or chain_plan(self.steps)
        plan = replace(
            plan, workers=way.workers, frozen=way.frozen, portable=self.is_portable or plan.portable
        )
        self.scratch.renew(way.commit)
        killed: list[watch.Process] = []
        if kill_at is not None:
            code, killed, tail = self._start(way, replace(plan, kill_at=kill_at, operations=None, steps=None))
            num_needed = 1 if plan.settings else kill_at
            if code == 0 or not any(len(process.updates) >= num_needed for process in killed):
                return Ran(way=way, code=code, processes=[], before_kill=killed, tail=tail, seconds=0.0)
            plan = replace(plan, settings=resumed_settings)
            if resumed_settings:
                self.scratch.keep()
        code, processes, tail = self._start(way, plan, resume_arguments, is_resumed=bool(killed))
        return Ran(
            way=way,
            code=code,
            processes=processes,
            before_kill=killed,
            tail=tail,
            seconds=time.monotonic() - begun,
        )

    def resume(self, killed: Ran, *, plan: watch.Plan, resume_arguments: tuple[str, ...]) -> Ran:
        """Start a killed script once more, in the folder as its kill has left it."""
        self.scratch.restore()
        plan = replace(plan, workers=killed.way.workers, portable=self.is_portable)
        code, processes, tail = self._start(killed.way, plan, resume_arguments, is_resumed=True)
        return replace(killed, code=code, processes=processes, tail=tail)

    def original(self, file: str | None) -> str | None:
        """Return where a file of the copied working folder really is."""
        return None if file is None else self.scratch.original(file)

    def _start(
        self,
        way: Way,
        plan: watch.Plan,
        more: tuple[str, ...] = (),
        *,
        is_resumed: bool = False,
    ) -> tuple[int, list[watch.Process], str]:
        self.num_runs += 1
        script = replace(self.script, arguments=(*self.script.arguments, *more))
        folder = self.folder = self.scratch.new_folder()
        log = folder / "output.txt"
        with log.open("wb") as kept:
            goes_to = self.show if self.num_runs == 1 and self.show is not None else kept
            done = watch.start(
                script,
                plan=plan,
                folder=folder,
                scratch=self.scratch,
                environment=way.settings,
                processes=way.processes,
                python=way.python,
                stdout=goes_to,
                stderr=goes_to,
            )
            try:
                code = following.wait(
                    done,
                    folder,
                    plan=plan,
                    on_step=self._told_of(plan, is_resumed),
                    timeout_s=self._left_s(),
                )
            except BaseException:
                done.terminate()
                done.wait()
                raise
        return code, watch.read(folder), tail_of(log)

    def _told_of(self, plan: watch.Plan, is_resumed: bool) -> OnStep:  # limits: a start, and which one
        """Return who hears of steps, and at how many this start ends, by its plan or as the script does."""
        ends = [number for number in (plan.kill_at or plan.steps, self.num_steps) if number is not None]
        expected = None if is_resumed or self.num_steps is None else min(ends)
        return lambda step, _planned: self.on_step(step, expected)

    def _left_s(self) -> float | None:
        return None if self.deadline_s is None else max(0.0, self.deadline_s - time.monotonic())


def chain_plan(steps: int | None) -> watch.Plan:
    """What is kept when chains are compared."""
    return watch.Plan(digests=watch.DIGESTS, steps=steps)
