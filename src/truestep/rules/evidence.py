"""Evidence as rules read it: what all processes of a run have left, and the sources of the script.

Owns looking things up. Gathers nothing and judges nothing.
"""

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from truestep import watch
from truestep.base.cells import code_of, is_notebook
from truestep.rules.kit.flow import OperationGraph
from truestep.watch import Moment, Operation, Process
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.kinds import Place
from truestep.watch.evidence.moment import Observed
from truestep.watch.evidence.stalls import Standing


@dataclass(frozen=True)
class Source:
    """A file of the user's."""

    path: str
    raw: str
    """As it stands in the file, with whatever ends its lines there."""

    @cached_property
    def text(self) -> str:
        """The same with a newline after each line, as Python reads it."""
        return self.raw.replace("\r\n", "\n").replace("\r", "\n")

    @cached_property
    def lines(self) -> list[str]:
        """Its lines as Python counts them: a form feed ends none."""
        return self.text.removesuffix("\n").split("\n")

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax; empty if it is not Python."""
        try:
            return ast.parse(self.text)
        except SyntaxError:
            return ast.Module(body=[], type_ignores=[])

    def at(self, line: int) -> Place:
        """Return a line as a place."""
        return Place(self.path, line, "")

    def line(self, number: int | None) -> str:
        """Return a line, counted from 1; empty if there is none."""
        return self.lines[number - 1] if number and 0 < number <= len(self.lines) else ""


@dataclass(kw_only=True)
class Evidence(Observed):
    """What is known of a run. Rules read it and nothing else."""

    processes: list[Process] = field(default_factory=list)
    machine: Any = None
    """What is known of the machine; only the doctor asks."""
    is_part: bool = False
    """Whether a part of a run was observed: what was seeded, made or loaded before it is not known."""
    origin: Operation | None = None
    """The operation that made the first value that is not finite, if the step was replayed."""
    standings: list[Standing] = field(default_factory=list)
    """Where each rank stood when the job hung, or when a collective failed in it."""
    texts: dict[str, str] = field(default_factory=dict)
    """Sources by path, for those that are not on this machine."""

    @staticmethod
    def read(folder: Path) -> "Evidence":
        """Return the evidence that watched processes have left in a folder."""
        found = watch.read(folder)
        # A script may leave all training to processes that it starts.
        training = [process for process in found if process.of(OptimizerStep)]
        return Evidence(processes=training or found)

    @property
    def first(self) -> Process:
        """The process of rank 0."""
        return self.processes[0]

    @property
    def has_ranks(self) -> bool:
        """Whether it is of a job of several processes."""
        return any(process.size > 1 for process in self.processes)

    def all_moments(self) -> list[Moment[Any]]:
        """Return the moments of the first process."""
        return self.first.moments if self.processes else []

    @property
    def operations(self) -> list[Operation]:
        """Operations of the first process in the steps that were looked at closely."""
        return self.first.operations

    @cached_property
    def flow(self) -> OperationGraph:
        """The same with who made and who uses what, built once for all rules."""
        return OperationGraph(self.operations)

    @cached_property
    def files(self) -> list[str]:
        """The user's own files in which something happened."""
        if not self.processes:
            return []
        places: Iterable[Moment[Any] | Operation] = (*self.first.moments, *self.first.operations)
        return sorted({place.file for place in places if place.file})

    @cached_property
    def sources(self) -> list[Source]:
        """Those files, as far as they can be read."""
        found = [self.source(path) for path in self.files]
        return [source for source in found if source is not None]

    def source(self, path: str | None) -> Source | None:
        """Return a file; None if it cannot be read."""
        if path is None:
            return None
        if path not in self._read:
            self._read[path] = self._read_source(path)
        return self._read[path]

    @cached_property
    def _read(self) -> dict[str, Source | None]:
        return {}

    def _read_source(self, path: str) -> Source | None:
        if path in self.texts:
            return Source(path, self.texts[path])
        try:
            return Source(path, code_of(path) if is_notebook(path) else Path(path).read_bytes().decode())
        except (OSError, ValueError):
            return None
