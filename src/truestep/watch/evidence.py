"""Evidence: what watched processes have written, read back.

Owns the reading of the files that tapes write. Judges nothing.
"""

import math
from array import array
from binascii import a2b_base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from truestep import record
from truestep.errors import StateError, UsageError

PHASES = ("other", "setup", "data", "forward", "backward", "optimizer")
"""Where in training an operation is called."""

UNREAD = "a digest"
"""What was in trouble where something could not be read."""

IS_RANDOM, HAS_GENERATOR, IS_UNINITIALISED, IN_EVALUATION, IS_FOREIGN = 1, 2, 4, 8, 16
_MAX_WHOLE_BYTES, _MAX_SAMPLED = 256 * 1024, 32_768


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Something that happened: what, in which step, when, at which line of the user's, and facts."""

    kind: str
    step: int
    """How many steps had been made before."""
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
    before: str | None
    """Only at each optimizer's first update: its weights before it, comparable with the part `weights`."""
    chain: str
    """Equal for two runs if this and all updates before it are."""


class In(NamedTuple):
    """A tensor that went in. The digest is empty where an operation writes without reading."""

    digest: str
    producer: int | None
    """The operation that last wrote this memory; None if no operation in the window did."""
    shape: tuple[int, ...] = ()
    has_grad: bool = False
    """Whether gradients flow back into it. Shape and this are there if the plan reads no digests."""


class Out(NamedTuple):
    """A tensor that came out, or was changed. The digest is empty if its memory was not read."""

    digest: str
    dtype: str
    shape: tuple[int, ...]
    offset: int | None
    """Where its values are; None for views, for what was not read, and once the file is full."""
    worst: str | None = None
    """The worst value in it: `finite`, `infinite` or `nan`; None if the plan did not ask."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation: who asked for it, and digests of what went in and came out."""

    index: int
    """Its place among all operations of the process, in the order in which they began."""
    thread: int
    """0 is the main one; others are numbered as they were started."""
    step: int
    name: str
    """As torch names it, `aten.mm.default`; or `ScaleBackward` for a backward pass written by hand."""
    file: str | None
    line: int | None
    function: str | None
    outer_file: str | None
    outer_line: int | None
    """In threads but the main one: the outermost line of the user's, that of the thread's function."""
    phase: str
    module: str
    """The path of the innermost module that is being called, seen from the outermost; else empty."""
    forward_name: str | None
    """In a backward pass: the operation of the forward pass whose gradient this is, and where it was."""
    forward_file: str | None
    forward_line: int | None
    forward_module: str | None
    node: str | None
    """The node of autograd that is at work."""
    is_random: bool
    """Whether it drew from a generator."""
    has_generator: bool
    """Whether it was given one."""
    is_uninitialised: bool
    """Whether it made memory that nobody has written."""
    in_evaluation: bool = False
    """Whether the innermost module was not in training mode. This and the next: if no digests are read."""
    is_foreign: bool = False
    """Whether the innermost module is in training mode since `eval()` of the outermost did not reach it."""
    ins: tuple[In, ...]
    scalars: str
    outs: tuple[Out, ...]


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
    switched_off: list[str] = field(default_factory=list)
    """Those among them after which an observer was switched off: what it would have seen is missing."""
    begun_s: float = 0.0
    operations: list[Operation] = field(default_factory=list)
    """Those in the steps that the plan named, in the order in which they began."""
    values: Path | None = None
    """The file with values of what operations gave."""
    kept: dict[str, str] = field(default_factory=dict)
    """Digests of what the script kept besides its optimizers', at its end, by name."""

    expected_steps: int | None = None
    """How many steps it would have made, if it was ended early and its loops say so."""

    @property
    def unread(self) -> list[str]:
        """Why something that is compared has no digest."""
        return [text.removeprefix(f"{UNREAD}: ") for text in self.troubles if text.startswith(UNREAD)]


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


def stride_of(num: int, itemsize: int) -> int:
    """Return the step at which a tensor's elements are kept: 1 keeps all."""
    return 1 if num * itemsize <= _MAX_WHOLE_BYTES else -(-num // _MAX_SAMPLED)


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
    sites: list[tuple[str | None, int | None, str | None]] = field(
        default_factory=lambda: [(None, None, None)]
    )
    kinds: dict[int, tuple[str, int, dict[str, Any]]] = field(default_factory=dict)
    # Operations have tables of their own.
    texts: list[str] = field(default_factory=lambda: [""])
    places: list[tuple[str | None, int | None, str | None]] = field(
        default_factory=lambda: [(None, None, None)]
    )
    origins: list[tuple[int, int, int]] = field(default_factory=lambda: [(0, 0, 0)])


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
    elif line["kind"] == "operations":
        process.operations.extend(_read_operations(line, names))
    elif line["kind"] == "kept":
        process.kept = dict(line["digests"])
    elif line["kind"] == "expected":
        process.expected_steps = line["steps"]
    elif line["kind"] == "trouble":
        process.troubles.append(line["error"])
        if line.get("is_off"):
            process.switched_off.append(line["error"])
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
            step=process.num_steps - (kind in ("draw", "crowd")),  # found once the step is over
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
    known = {"kind", "time_s", "step", "optimizer", "site", "parameters", "before", "chain"}
    return Update(
        step=line["step"],
        optimizer=line["optimizer"],
        file=file,
        line=number,
        parts={key: value for key, value in line.items() if key not in known},
        parameters=line.get("parameters", {}),
        before=line.get("before"),
        chain=line["chain"],
    )


def _read_operations(line: dict[str, Any], names: _Names) -> Iterator[Operation]:
    names.texts.extend(line["texts"])
    names.places.extend((file, number, function) for file, number, function in line["sites"])
    names.origins.extend((name, site, module) for name, site, module in line["origins"])
    for row in line["rows"]:
        yield _read_operation(row, names)


def _read_operation(row: list[Any], names: _Names) -> Operation:
    index, thread, step, name, site, outer, phase, module, origin, node, flags, scalars, ins, outs = row
    texts, places = names.texts, names.places
    forward_name, forward_site, forward_module = names.origins[origin]
    return Operation(
        index=index,
        thread=thread,
        step=step,
        name=texts[name],
        file=places[site][0],
        line=places[site][1],
        function=places[site][2],
        outer_file=places[outer][0],
        outer_line=places[outer][1],
        phase=PHASES[phase],
        module=texts[module],
        forward_name=texts[forward_name] if origin else None,
        forward_file=places[forward_site][0],
        forward_line=places[forward_site][1],
        forward_module=texts[forward_module] if origin else None,
        node=texts[node] or None,
        is_random=bool(flags & IS_RANDOM),
        has_generator=bool(flags & HAS_GENERATOR),
        is_uninitialised=bool(flags & IS_UNINITIALISED),
        in_evaluation=bool(flags & IN_EVALUATION),
        is_foreign=bool(flags & IS_FOREIGN),
        ins=tuple(_read_in(*item) for item in ins),
        scalars=scalars,
        outs=tuple(
            Out(digest, texts[dtype], tuple(shape), offset, *rest)
            for digest, dtype, shape, offset, *rest in outs
        ),
    )


def _read_in(digest: str, producer: int | None, *rest: Any) -> In:
    return In(digest, producer, tuple(rest[0]), rest[1]) if rest else In(digest, producer)
