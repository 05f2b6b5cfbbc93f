"""Ways of running a script again: what is the same, and the one thing that is not.

Owns what can be varied and how each is called. Running is left to `runs`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from truestep.watch.launch.commit import Commit

Kind = Literal[
    "first", "again", "killed", "processes", "workers", "threads", "environment", "python", "commit", "file"
]

OUTCOME = ("loss", "gradients", "weights", "state", "buffers", "settings", "kept")
"""What two runs must have in common to be the same. Batches, inputs and generators only explain. `kept` is
all else that the script keeps from step to step or saves."""

SHARED_OUTCOME = ("gradients", "weights", "state", "settings")
"""The same for other numbers of processes, of which each has batches and a loss of its own."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way. What is left out is as the script has it."""

    kind: Kind = "first"
    processes: int | None = None
    """Through torchrun, if a number is given."""
    workers: int | None = None
    threads: int | None = None
    environment: Mapping[str, str | None] = field(default_factory=dict)
    frozen: tuple[str, ...] = ()
    """What an experiment holds still."""
    python: str | None = None
    """Another interpreter, with another torch."""
    commit: Commit | None = None
    """Another commit of the repository that the working folder is in."""

    @property
    def outcome(self) -> tuple[str, ...]:
        """The parts of a step that are compared with those of the first run."""
        return SHARED_OUTCOME if self.kind == "processes" else OUTCOME

    @property
    def words(self) -> str:
        """What is told of it."""
        words: dict[str, str] = {
            "first": ", ".join(self._numbers()) or "unmodified",
            "again": "repeat",
            "killed": "killed and resumed",
            "processes": _count(self.processes, "process", "processes"),
            "workers": _count(self.workers, "worker", "workers"),
            "threads": _count(self.threads, "thread", "threads"),
            "python": self.python or "",
            "commit": f"commit {self.commit.name}" if self.commit else "",
            "file": "fingerprint",
            "environment": " ".join(_words_of(name, value) for name, value in self.environment.items()),
        }
        return words[self.kind]

    def _numbers(self) -> list[str]:
        """Return what the first run has in place of the script's own."""
        threads = None if self.processes else self.threads  # of several processes each has one
        settings = {
            _count(self.processes, "process", "processes"): self.processes,
            _count(self.workers, "worker", "workers"): self.workers,
            _count(threads, "thread", "threads"): threads,
        }
        return [words for words, number in settings.items() if number is not None]

    @property
    def settings(self) -> dict[str, str | None]:
        """The environment variables to set, or to take away."""
        threads = {} if self.threads is None else {"OMP_NUM_THREADS": str(self.threads)}
        return {**threads, **self.environment}


def _count(number: int | None, one: str, several: str) -> str:  # limits: a number and its two words
    return f"{number} {one if number == 1 else several}"


def _words_of(name: str, value: str | None) -> str:
    return f"without {name}" if value is None else f"{name}={value}"
