"""The verdict: whether runs were the same, what was run, and the first difference.

Owns what is told, as plain values by the command's contract. How it looks is left to the command.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from truestep.verify.written import WrittenFiles

_ENDED = 130


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One run: how, with what result."""

    kind: str
    words: str
    processes: int
    num_steps: int
    digest: str
    parted_at: int | None = None
    """The step, from 1, at which it parts from the first run; 0 is before the first step."""
    seconds: float = 0.0

    @property
    def divergence(self) -> str:
        """Where it parts from the first run, in words; empty if it does not."""
        if self.parted_at is None:
            return ""
        return f"diverges at step {self.parted_at}" if self.parted_at else "diverges before the first step"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The first difference: when, what, where, and why."""

    step: int
    """From 1; 0 is before the first step."""
    what: str
    operation: str | None
    module: str | None
    file: str | None
    line: int | None
    name: str
    cause: str
    is_proved: bool
    distance: str | None
    evidence: tuple[str, ...]
    fix: str
    repair: tuple[str, ...] = ()
    """Lines of code that repair it, if they are known."""

    def as_fields(self) -> dict[str, Any]:
        """Return it as the contract has it."""
        return {
            "step": self.step,
            "what": self.what,
            "operation": self.operation,
            "module": self.module,
            "file": self.file,
            "line": self.line,
            "name": self.name,
            "cause": self.cause,
            "proved": self.is_proved,
            "distance": self.distance,
            "evidence": list(self.evidence),
            "fix": self.fix,
            "repair": list(self.repair),
        }


@dataclass(kw_only=True)
class Verdict:
    """What verify has to say. `same` is None when it could not tell, for the reason given."""

    same: bool | None = None
    runs: list[RunSummary] = field(default_factory=list)
    first_difference: Difference | None = None
    reason: str | None = None
    num_steps: int = 0
    """How many steps of the script were compared."""
    is_whole: bool = True
    """Whether those are all that it makes."""
    expected_steps: int | None = None
    """How many it makes, if those are not all and its loops say so."""

    is_rounding: bool = False
    """Whether what differs from another version is rounding alone."""
    compiled: dict[str, Any] | None = None
    """Whether compiled code differs from eager code by more than rounding, and where first."""
    resume: dict[str, Any] | None = None
    """Of a killed run: from which step it was resumed, how long that took, and a save that a kill tears."""
    files: WrittenFiles | None = None
    """How the files that the runs wrote compare; None if they were not compared."""
    saved: str | None = None
    """The fingerprint that was written."""
    is_interrupted: bool = False
    """Whether Ctrl-C ended it before it could tell."""

    def end_early(self, ended_by: str, *, num_wanted: int) -> None:
        """A difference that was found by then stays found; the search for its cause is over."""
        if self.same is not False:  # what else was asked for was not compared
            self.same = None
            self.reason = f"{ended_by} ended it after {len(self.runs)} of {num_wanted} runs"
        elif self.first_difference is not None and not self.first_difference.is_proved:
            found, said = self.first_difference, f"{ended_by} ended the search for it"
            known = {"evidence": (*found.evidence, f"likely: {ended_by} ended the experiments")}
            unknown = {"cause": f"unknown: {said}", "fix": "run the same command again and let it finish"}
            self.first_difference = replace(found, **(unknown if found.name == "unknown" else known))

    @property
    def exit_code(self) -> int:
        """0 the same (or rounding of another version), 1 different, 2 could not tell, 130 ended by Ctrl-C."""
        if self.is_interrupted:
            return _ENDED
        return 2 if self.same is None else int(not self.same and not self.is_rounding)

    def as_fields(self) -> dict[str, Any]:
        """Return it as the contract has it; `reason` is there when it could not tell."""
        runs = [{"kind": run.kind, "processes": run.processes, "digest": run.digest} for run in self.runs]
        difference = self.first_difference
        fields = {
            "same": self.same,
            "runs": runs,
            "first_difference": None if difference is None else difference.as_fields(),
            "steps": self.num_steps,
            "whole": self.is_whole,
            "expected_steps": self.expected_steps,
            "rounding": self.is_rounding,
            "files": None if self.files is None else self.files.as_fields(),
            "saved": self.saved,
            "compiled": self.compiled,
            "resume": self.resume,
        }
        return fields if self.reason is None else {**fields, "reason": self.reason}
