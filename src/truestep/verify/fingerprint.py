"""The fingerprint of a run: a small file with the digests of its steps, to compare later runs with.

Owns the format (docs/fingerprint-format.md). It holds no value of a tensor: digests, norms, and sums with
signs, from which distances can be estimated.
"""

import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from truestep.base import plainfile
from truestep.errors import UsageError
from truestep.verify.runs import Ran
from truestep.watch import Operation, Process, Update, values_of
from truestep.watch.evidence.facts.surroundings import TorchImported
from truestep.watch.evidence.sketch import NUM_SUMS, sums_of

KIND, VERSION = "truestep-fingerprint", 1
_MAX_OPERATIONS = 5_000
_PASSES = ("forward", "backward", "optimizer")
_NUM_HEX = 8


@dataclass(frozen=True, kw_only=True)
class Called:
    """One operation, as far as two versions of a script or of torch have it in common."""

    name: str
    module: str
    file: str | None
    line: int | None
    scalars: str
    ins: tuple[str, ...]
    outs: tuple[str, ...]
    norm: float | None
    """Of its first output that was kept, and a sum of it with signs."""
    total: float | None
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """A run: its steps, and the operations of the first one."""

    made_with: dict[str, Any]
    """Versions, threads, script and arguments."""
    is_whole: bool
    updates: list[Update] = field(repr=False)
    operations: list[Called] = field(repr=False)


def made_with(process: Process, *, script: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Return what bits depend on besides the script."""
    torch = next((moment.facts for moment in process.of(TorchImported)), None)
    return {
        "script": script,
        "arguments": list(arguments),
        "torch": torch.version if torch else None,
        "threads": torch.num_threads if torch else None,
        "machine": f"{platform.machine()} {platform.system()}",
    }


def calls_of(process: Process, *, step: int) -> list[Called]:
    """Return the operations of a step, in order; of later steps than the first those of its passes."""
    wanted = [item for item in process.operations if item.step == step and not item.thread]
    return [_called(process, item) for item in wanted if not step or item.phase in _PASSES]


def _called(process: Process, operation: Operation) -> Called:
    norm = total = None
    for place, out in enumerate(operation.outs):
        values = values_of(process, operation, place) if out.offset is not None else None
        if values is not None and values.dtype.kind == "f" and values.size:
            exact = values.astype(np.float64)
            norm, total = float(np.sqrt(exact @ exact)), float(sums_of(exact)[0])
            break
    backward = operation.forward_line is not None
    return Called(
        name=operation.name,
        module=(operation.forward_module if backward else operation.module) or "",
        file=operation.forward_file if backward else operation.file,
        line=operation.forward_line if backward else operation.line,
        scalars=operation.scalars,
        ins=tuple(item.digest[:_NUM_HEX] for item in operation.ins),
        outs=tuple(item.digest[:_NUM_HEX] for item in operation.outs),
        norm=norm,
        total=total,
        dtype=next((item.dtype for item in operation.outs), ""),
    )


def save(path: Path, ran: Ran, *, looked_at: Process | None, made: dict[str, Any]) -> None:
    """Write the fingerprint of a run; `looked_at` is one whose first step's operations were noted."""
    assert ran.first is not None
    calls = calls_of(looked_at, step=0)[:_MAX_OPERATIONS] if looked_at is not None else []
    lines = [{"kind": KIND, "version": VERSION, **made, "whole": ran.first.ended == "finished"}]
    for update in ran.updates:
        parts = {name: value for name, value in update.parts.items() if name not in ("kept", "generators")}
        lines.append({"kind": "update", "step": update.step, "optimizer": update.optimizer, **parts})
    for call in calls:
        file = Path(call.file).name if call.file else None
        row = [call.name, call.module, file, call.line, call.scalars, call.ins, call.outs, call.norm]
        lines.append({"kind": "operation", "row": [*row, call.total, call.dtype]})
    text = "".join(
        json.dumps(line, separators=(",", ":"), allow_nan=False, default=str) + "\n" for line in lines
    )
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written ({error}). Pass --save a file in a folder of yours."
        ) from error


def is_fingerprint(path: Path) -> bool:
    """Whether a file begins as a fingerprint does."""
    try:
        with path.open("rb") as file:
            return f'"kind":"{KIND}"'.encode() in file.read(200)
    except OSError:
        return False


def read(path: Path) -> Fingerprint:
    """Read a fingerprint that anybody may have written."""
    try:
        lines = [json.loads(line) for line in plainfile.read_bytes(path).decode().splitlines()]
        head, *rest = lines
        if head["kind"] != KIND or head["version"] != VERSION:
            raise ValueError(f"version {head.get('version')!r}, and this truestep reads version {VERSION}")
        return Fingerprint(
            made_with={key: head.get(key) for key in ("script", "arguments", "torch", "threads", "machine")},
            is_whole=bool(head["whole"]),
            updates=[_update(line) for line in rest if line["kind"] == "update"],
            operations=[_read_call(line["row"]) for line in rest if line["kind"] == "operation"],
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise UsageError(
            f"{path} is not a fingerprint that this truestep can read ({error}). Write one with --save."
        ) from error


def _update(line: dict[str, Any]) -> Update:
    parts = {key: value for key, value in line.items() if key not in ("kind", "step", "optimizer")}
    for value, _ in parts.get("loss", ()):
        if value is not None:
            float.fromhex(value)
    for numbers in parts.get("sketch", {}).values():
        if len(numbers) != 1 + NUM_SUMS or any(type(number) not in (float, type(None)) for number in numbers):
            raise ValueError("a sketch that is none")
    step, optimizer = int(line["step"]), int(line["optimizer"])
    return Update(
        step=step,
        optimizer=optimizer,
        file=None,
        line=None,
        parts=parts,
        before=None,
        chain="",
    )


def _read_call(row: list[Any]) -> Called:
    name, module, file, line, scalars, ins, outs, norm, total, dtype = row
    return Called(
        name=str(name),
        module=str(module),
        file=file,
        line=line,
        scalars=str(scalars),
        ins=tuple(map(str, ins)),
        outs=tuple(map(str, outs)),
        norm=None if norm is None else float(norm),
        total=None if total is None else float(total),
        dtype=str(dtype),
    )


def made_differently(saved: Fingerprint, made: dict[str, Any]) -> list[str]:
    """Return what besides the script is another than when a fingerprint was saved."""
    names = ("torch", "threads", "machine")
    return [
        f"saved with {name} {saved.made_with[name]}, now {made.get(name)}"
        for name in names
        if saved.made_with[name] != made.get(name)
    ]
