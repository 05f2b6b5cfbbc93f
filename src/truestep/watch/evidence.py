"""Evidence: what watched processes have written, read back.

Owns the reading of the files that tapes write. Judges nothing.
"""

from array import array
from binascii import a2b_base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from truestep import record
from truestep.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Something that happened: what, in which step, when, at which line of the user's, and facts."""

    kind: str
    step: int
    """How many steps the first optimizer had made before."""
    at_s: float
    took_s: float
    file: str | None
    line: int | None
    function: str | None
    facts: dict[str, Any]
    value: Any = None
    """What changes from one time to the next: a loss, learning rates, keys that did not fit."""


@dataclass(frozen=True, kw_only=True)
class Update:
    """One step of an optimizer, in digests. Parts that the plan did not ask for are absent."""

    step: int
    optimizer: int
    file: str | None
    line: int | None
    parts: dict[str, Any]
    """Lists for `batch`, `inputs` and `loss`, a mapping for `generators`, one digest for all else."""
    parameters: dict[str, dict[str, str]]
    """Part, then name, then digest, at steps for which the plan asked."""
    chain: str
    """Equal for two runs if this and all updates before it are."""


@dataclass(kw_only=True)
class Process:
    """All that one process has left."""

    pid: int
    argv: list[str]
    rank: int = 0
    size: int = 1
    num_steps: int = 0
    ended: str | None = None
    """`finished`, `stopped` (after enough steps), `raised`, or None: killed, or still running."""
    error: str | None = None
    moments: list[Moment] = field(default_factory=list)
    models: list[dict[str, Any]] = field(default_factory=list)
    """Digests of outermost modules as they were when first called."""
    updates: list[Update] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    """What could not be read, so that no digest stands for it."""
    begun_s: float = 0.0


def read(folder: Path) -> list[Process]:
    """Return the evidence of all processes that wrote into the folder, by rank, then by when they began.

    A process that was killed has lost at most what its plan's `flush_s` says; torn lines are passed over.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder. Pass the folder that the evidence was written into.")
    found = [_read_process(path) for path in sorted(folder.glob("process-*.jsonl"))]
    return sorted((item for item in found if item is not None), key=lambda item: (item.rank, item.begun_s))


@dataclass
class _Names:
    sites: list[tuple[str | None, int | None, str | None]] = field(
        default_factory=lambda: [(None, None, None)]
    )
    kinds: dict[int, tuple[str, int, dict[str, Any]]] = field(default_factory=dict)


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
        groups = [moment.facts for moment in process.moments if moment.kind == "group"]
        if groups:
            process.rank, process.size = groups[-1]["rank"], groups[-1]["size"]
    return process


def _add_line(process: Process, line: dict[str, Any], names: _Names) -> None:
    if line["kind"] == "moments":
        process.moments.extend(_read_block(line, names, process))
    elif line["kind"] == "update":
        process.updates.append(_read_update(line, names))
    elif line["kind"] == "model":
        file, number, _ = names.sites[line["site"]]
        process.models.append({**line, "file": file, "line": number})
    elif line["kind"] == "trouble":
        process.troubles.append(line["error"])
    elif line["kind"] == "end":
        process.ended, process.error = line["how"], line.get("error")


def _read_block(line: dict[str, Any], names: _Names, process: Process) -> Iterator[Moment]:
    names.sites.extend((file, number, function) for file, number, function in line["sites"])
    names.kinds.update({number: (kind, site, facts) for number, kind, site, facts in line["kinds"]})
    values = {(number, begun_ns): value for number, begun_ns, value in line["values"]}
    rows = array("q", a2b_base64(line["rows"]))  # kind, beginning and end of one moment after the other
    for number, begun_ns, ended_ns in zip(rows[0::3], rows[1::3], rows[2::3], strict=True):
        kind, site, facts = names.kinds[number]
        file, place, function = names.sites[site]
        yield Moment(
            kind=kind,
            step=process.num_steps - (kind == "draw"),  # found once the step is over
            at_s=(begun_ns - line["base_ns"]) / 1e9,
            took_s=(ended_ns - begun_ns) / 1e9,
            file=file,
            line=place,
            function=function,
            facts=facts,
            value=values.get((number, begun_ns)),
        )
        if kind == "step" and facts["counts"]:
            process.num_steps += 1


def _read_update(line: dict[str, Any], names: _Names) -> Update:
    file, number, _ = names.sites[line["site"]]
    known = {"kind", "time_s", "step", "optimizer", "site", "parameters", "chain"}
    return Update(
        step=line["step"],
        optimizer=line["optimizer"],
        file=file,
        line=number,
        parts={key: value for key, value in line.items() if key not in known},
        parameters=line.get("parameters", {}),
        chain=line["chain"],
    )
