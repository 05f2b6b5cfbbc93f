"""What the user wants to know of a script: in which ways it is run again, how far, and what is refused.

Owns the options and their limits. Running is left to `inquiry`.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from truestep.errors import UsageError
from truestep.verify.ways import Way


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """What the user wants to know."""

    steps: int | None = 100
    runs: int = 2
    is_killed: bool = False
    resume_arguments: tuple[str, ...] = ()
    """What the script is given in addition when it is started again after the kill."""
    processes: tuple[int, ...] = ()
    workers: tuple[int, ...] = ()
    threads: tuple[int, ...] = ()
    environments: tuple[Mapping[str, str | None], ...] = ()
    against: tuple[str, ...] = ()
    """Other interpreters, commits, and fingerprints."""
    is_compiled: bool = False
    """Whether compiled code is compared with eager code."""
    save: Path | None = None
    """Where to write the fingerprint of the first run, if it repeats."""
    timeout_s: float | None = None
    """After which time it ends with what is known by then."""
    has_proof: bool = True
    """Whether experiments are made to prove a cause."""

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise UsageError(f"--steps must be at least 1, got {self.steps}.")
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise UsageError(f"--timeout must be more than 0 seconds, got {self.timeout_s:g}.")
        if self.runs < 1:
            raise UsageError(f"--runs must be at least 1, got {self.runs}.")
        least = {"processes": 1, "workers": 0, "threads": 1}
        for name, smallest in least.items():
            given = getattr(self, name)
            if any(number < smallest for number in given):
                raise UsageError(f"--{name} must be {smallest} or more, got {min(given)}.")
        if self.is_portable and len({*self.processes, 1}) > 1:
            raise UsageError("--save and --against compare runs of one process. Leave out --processes.")
        if self.runs < 2 and not self.ways and not self.against and not self.is_compiled:
            raise UsageError("--runs 1 compares nothing. Pass 2 or more, or an option such as --kill.")

    @property
    def is_portable(self) -> bool:
        """Whether runs are compared with those of another version."""
        return bool(self.against or self.save)

    @property
    def base(self) -> Way:
        """The way of the first run: the first of all numbers given."""
        # Torchrun gives several processes one thread each: one process must have as many.
        threads = self.threads[:1] or ((1,) if self.processes else (None,))
        return Way(
            processes=next(iter(self.processes), None),
            workers=next(iter(self.workers), None),
            threads=threads[0],
        )

    @property
    def num_runs(self) -> int:
        """How many runs are compared, the first one included."""
        return self.runs + len(self.ways) + len(self.against)

    @property
    def ways(self) -> list[Way]:
        """All ways that differ from the first in one thing."""
        base = self.base
        killed = [replace(base, kind="killed")] if self.is_killed else []
        return [
            *killed,
            *(replace(base, kind="processes", processes=number) for number in self.processes[1:]),
            *(replace(base, kind="workers", workers=number) for number in self.workers[1:]),
            *(replace(base, kind="threads", threads=number) for number in self.threads[1:]),
            *(replace(base, kind="environment", environment=given) for given in self.environments),
        ]

    def deadline_s(self) -> float | None:
        """Return when the time is over that begins now, by the monotonic clock."""
        return None if self.timeout_s is None else time.monotonic() + self.timeout_s
