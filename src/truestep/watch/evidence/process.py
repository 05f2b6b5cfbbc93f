"""Evidence: what watched processes have written, read back.

Owns the reading of the files that tapes write. Judges nothing.
"""

import math
from array import array
from binascii import a2b_base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from truestep import record
from truestep.errors import StateError, UsageError
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.surroundings import GroupJoined
from truestep.watch.evidence.kinds import NOT_CHECKED, UNREAD
from truestep.watch.evidence.moment import Moment, Observed, Written
from truestep.watch.evidence.operation import Operation, Out, Site, TableReader, stride_of


@dataclass(frozen=True, kw_only=True)
class Update:
    """One step of an optimizer, in digests. Parts that the plan did not ask for are absent."""

    step: int
    optimizer: int
    file: str | None
    line: int | None
    parts: dict[str, Any]
    """Lists for `batch`, `inputs` and `loss`, mappings for `generators` and, by model, `buffers`, one digest
    for all else."""
    before: str | None
    """Only at each optimizer's first update: its weights before it, comparable with the part `weights`."""
    chain: str
    """Equal for two runs if this and all updates before it are."""


@dataclass(kw_only=True)
class Process(Observed):
    """All that one process has left."""

    pid: int
    argv: list[str]
    rank: int = 0
    size: int = 1
    num_steps: int = 0
    ended: str | None = None
    """`finished`, `stopped` (after enough steps), `raised`, or None: killed, or still running."""
    error: str | None = None
    moments: list[Moment[Any]] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    """What could not be read, so that no digest stands for it."""
    switched_off: list[str] = field(default_factory=list)
    """Those among them after which an observer was switched off: what it would have seen is missing."""
    begun_s: float = 0.0
    operations: list[Operation] = field(default_factory=list)
    """Those in the steps that the plan named, in the order in which they began."""
    values: Path | None = None
    """The file with values of what operations gave."""
    kept: dict[str, str] = field(default_factory=dict)
    """Digests of what the script kept besides its optimizers', at its end, by name."""

    plain: dict[int, dict[str, str]] = field(default_factory=dict)
    """By step: what variables held when it began, by name, if the plan asked for it."""
    begun: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By step: `kinds` of these, `at` which line it began, at which `count` of arrivals there, and digests of
    the global `generators`, comparable with those of updates."""
    expected_steps: int | None = None
    """How many steps it would have made, if it was ended early and its loops say so."""

    def all_moments(self) -> list[Moment[Any]]:
        """Return the moments of this process."""
        return self.moments

    @property
    def unread(self) -> list[str]:
        """Why something that is compared has no digest."""
        return [text.removeprefix(f"{UNREAD}: ") for text in self.troubles if text.startswith(UNREAD)]

    @property
    def not_checked(self) -> list[str]:
        """What rules would need and was too expensive to look at, and why."""
        parts = (text.partition(NOT_CHECKED) for text in self.troubles)
        return [reason for _, mark, reason in parts if mark]


def read(folder: Path) -> list[Process]:
    """Return the evidence of all processes that wrote into the folder, by rank, then by when they began.

    A process that was killed has lost at most what its plan's `flush_s` says; torn lines are passed over.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder. Pass the folder that the evidence was written into.")
    found = [_try_to_read(path) for path in sorted(folder.glob("process-*.jsonl")) if path.is_file()]
    return sorted((item for item in found if item is not None), key=lambda item: (item.rank, item.begun_s))


def values_path(path: Path) -> Path:
    """Return where the values are that belong to a process's evidence."""
    return path.with_suffix(".values")


def values_of(  # limits: the number is like an index
    process: Process, operation: Operation, number: int = 0
) -> npt.NDArray[Any] | None:
    """Return what was kept of an operation's output of that number, flat, in the order of its memory.

    Large ones were sampled. None if nothing was kept; numbers of 16 bits that NumPy lacks come as float32.
    """
    path, out = process.values, operation.outs[number]
    if path is None or out.offset is None or not path.is_file():
        return None
    try:
        return _read_values(path, out, out.offset)
    except (TypeError, ValueError, OverflowError, OSError) as error:
        raise _damaged(path, error) from error


def _read_values(path: Path, out: Out, offset: int) -> npt.NDArray[Any] | None:
    kind = np.dtype("uint16" if out.dtype == "bfloat16" else out.dtype)
    num = math.prod(out.shape)
    num = -(-num // stride_of(num, kind.itemsize))
    if offset + num * kind.itemsize > path.stat().st_size:  # the process was killed
        return None
    with path.open("rb") as file:
        file.seek(offset)
        raw = file.read(num * kind.itemsize)
    values = np.frombuffer(raw, dtype=kind)
    return (values.astype(np.uint32) << 16).view(np.float32) if out.dtype == "bfloat16" else values


@dataclass
class _Names:
    sites: list[Site] = field(default_factory=lambda: [(None, None, None)])
    kinds: dict[int, Written] = field(default_factory=dict)
    tables: TableReader = field(default_factory=TableReader)


def _try_to_read(path: Path) -> Process | None:
    try:
        return _read_process(path)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> StateError:
    return StateError(
        f"{path} is no evidence that this truestep has written, or it is damaged "
        f"({type(error).__name__}: {error}). Run the script again."
    )


def _read_process(path: Path) -> Process | None:
    process: Process | None = None
    names = _Names()
    for line in record.read(path):
        if line["kind"] == "start":
            process = Process(pid=line["pid"], argv=line["argv"], begun_s=line["time_s"])
        elif process is not None:
            _add_line(process, line, names)
    if process is not None:
        process.moments.sort(key=lambda moment: moment.at_s)
        process.operations.sort(key=lambda operation: operation.index)
        process.values = values_path(path)
        groups = [moment.facts for moment in process.of(GroupJoined)]
        if groups:
            process.rank, process.size = groups[-1].rank, groups[-1].size
    return process


def _add_line(process: Process, line: dict[str, Any], names: _Names) -> None:
    if line["kind"] == "moments":
        process.moments.extend(_read_block(line, names, process))
    elif line["kind"] == "update":
        process.updates.append(_read_update(line, names))
    elif line["kind"] == "operations":
        process.operations.extend(names.tables.read(line))
    elif line["kind"] == "kept":
        process.kept = dict(line["digests"])
    elif line["kind"] == "plain":
        process.plain[line["step"]] = dict(line["values"])
        process.begun[line["step"]] = dict(line["begun"])
    elif line["kind"] == "expected":
        process.expected_steps = line["total"]
    elif line["kind"] == "trouble":
        process.troubles.append(line["error"])
        if line.get("is_off"):
            process.switched_off.append(line["error"])
    elif line["kind"] == "end":
        process.ended, process.error = line["how"], line.get("error")


def _read_block(line: dict[str, Any], names: _Names, process: Process) -> Iterator[Moment[Any]]:
    names.sites.extend((file, number, function) for file, number, function in line["sites"])
    for number, kind, site, shared in line["kinds"]:
        names.kinds[number] = Written.read(kind, site=site, shared=shared)
    values = {(number, begun_ns): value for number, begun_ns, value in line["values"]}
    rows = array("q", a2b_base64(line["rows"]))  # kind, beginning and end of one moment after the other
    for number, begun_ns, ended_ns in zip(rows[0::3], rows[1::3], rows[2::3], strict=True):
        written = names.kinds[number]
        file, place, function = names.sites[written.site]
        facts = written.facts(values.get((number, begun_ns)))
        yield Moment(
            facts=facts,
            step=process.num_steps,
            at_s=(begun_ns - line["base_ns"]) / 1e9,
            took_s=(ended_ns - begun_ns) / 1e9,
            file=file,
            line=place,
            function=function,
        )
        if isinstance(facts, OptimizerStep) and facts.counts:
            process.num_steps += 1


def _read_update(line: dict[str, Any], names: _Names) -> Update:
    file, number, _ = names.sites[line["site"]]
    known = {"kind", "time_s", "step", "optimizer", "site", "before", "chain"}
    return Update(
        step=line["step"],
        optimizer=line["optimizer"],
        file=file,
        line=number,
        parts={key: value for key, value in line.items() if key not in known},
        before=line.get("before"),
        chain=line["chain"],
    )
