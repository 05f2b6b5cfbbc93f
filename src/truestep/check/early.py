"""Findings while the script still runs: when rules are evaluated early, and what is certain by then.

Owns the schedule and the cut. A rule declares whether later evidence can take its findings back
(`Meta.is_lasting`); only those that it cannot are reported early. The answer is evaluated at the end.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Self

from truestep.check.evaluate import RuleFinding, evaluate_rules
from truestep.errors import TruestepError
from truestep.rules.evidence import Evidence
from truestep.rules.rule import Rule
from truestep.watch import Process
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.launch import following

FIRST_STEPS = 4
"""How many steps must be over: operations are noted in the first three, and rules read all of them."""
_LOOK_S = 0.25
_SETTLE_S = 3.0
"""How long a script must have been making steps: one that is about to end is reported on then."""
_PAUSE_S = 1.0
_MAX_LOAD = 0.05
"""The largest share of the time that is spent on evaluating."""
_GROWTH = 0.25
"""By how much the evidence grows until it is evaluated again: all of it is read each time."""
_NICE = 10

Key = tuple[str, str | None, int | None]
OnFinding = Callable[[RuleFinding, Evidence], None]


def key_of(reported: RuleFinding) -> Key:
    """Return what makes a finding the same one in the evidence so far and in all of it."""
    return (reported.rule.meta.code, reported.finding.file, reported.finding.line)


def cut(evidence: Evidence, num_steps: int) -> Evidence:
    """Return the evidence of the first steps: all that happened until the last of them had ended."""
    processes = [_cut_process(process, num_steps) for process in evidence.processes]
    return Evidence(processes=processes, texts=evidence.texts, is_part=evidence.is_part)


def _cut_process(process: Process, num_steps: int) -> Process:
    ends = [moment.at_s + moment.took_s for moment in process.of(OptimizerStep) if moment.facts.counts]
    given = {field.name: getattr(process, field.name) for field in fields(Process)}
    if len(ends) > num_steps:
        until_s = ends[num_steps - 1]
        moments = [moment for moment in process.moments if moment.at_s <= until_s]
        given |= {"moments": moments, "num_steps": num_steps, "ended": None, "error": None}
    return Process(**given)


def find_lasting(rules: Sequence[Rule], evidence: Evidence) -> list[RuleFinding]:
    """Return the findings that later evidence cannot take back."""
    return evaluate_rules([rule for rule in rules if rule.meta.is_lasting], evidence).findings


def cut_whole(evidence: Evidence) -> Evidence | None:
    """Return the evidence of the steps that are complete for sure; None if they are too few to evaluate."""
    num_steps = max((process.num_steps for process in evidence.processes), default=0) - 1
    return cut(evidence, num_steps) if num_steps >= FIRST_STEPS else None


class Pace:
    """When the evidence so far is worth evaluating again: a small share of the time goes into that."""

    def __init__(self) -> None:
        self._begun_s = self._next_s = time.monotonic()
        self._num_steps = FIRST_STEPS

    def is_due(self, num_steps: int) -> bool:
        """Whether there are new steps, and enough time has passed."""
        return num_steps > self._num_steps and time.monotonic() >= self._next_s

    def note(self, num_steps: int, *, since_s: float) -> None:
        """Note that so many steps were evaluated, from a time on until now."""
        now = time.monotonic()
        self._num_steps = num_steps
        self._next_s = now + max(_PAUSE_S, (now - since_s) / _MAX_LOAD, (now - self._begun_s) * _GROWTH)


class EarlyFindings:
    """Evaluates the lasting rules now and then while a script runs, in a thread of low priority.

    `leave_out` takes away what is suppressed. `on_finding` gets each finding once.
    """

    def __init__(
        self,
        rules: Sequence[Rule],
        *,
        leave_out: Callable[[list[RuleFinding], Evidence], list[RuleFinding]],
        on_finding: OnFinding,
    ) -> None:
        self._rules, self._leave_out, self._on_finding = rules, leave_out, on_finding
        self.reported: set[Key] = set()
        self._folder = Path()
        self._pace = Pace()
        self._settled_s: float | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="truestep-early", daemon=True)

    def beside(self, folder: Path) -> Self:
        """Return a context in which the evidence in a folder is evaluated as it grows."""
        self._folder = folder
        return self

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # limits: Python calls it like this
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        if sys.platform == "linux":  # each thread has its own priority; elsewhere the number is no process's
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while not self._is_over.wait(_LOOK_S):
            begun_s = time.monotonic()
            num_steps = following.num_steps_so_far(self._folder)
            if not self._pace.is_due(num_steps):
                continue
            self._settled_s = self._settled_s or begun_s + _SETTLE_S
            if begun_s < self._settled_s:
                continue
            self._look()
            self._pace.note(num_steps, since_s=begun_s)

    def _look(self) -> None:
        """Evaluate what the steps so far have left; the last one may be half written."""
        try:
            evidence = cut_whole(Evidence.read(self._folder))
            if evidence is None:
                return
            found = self._leave_out(find_lasting(self._rules, evidence), evidence)
        except (TruestepError, OSError):  # a file in the middle of a write: the end reads it whole
            return
        for reported in found:
            if key_of(reported) not in self.reported and not self._is_over.is_set():
                self.reported.add(key_of(reported))
                self._on_finding(reported, evidence)
