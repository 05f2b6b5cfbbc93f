"""The record: one append-only JSON-lines file per run that every command writes and reads.

Owns the file format. Leaves to others what is written, and fetching values from a device.
"""

import contextlib
import json
import math
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from truestep.base import runfiles
from truestep.errors import TruestepError

VERSION = 1
_NO_FILE = -1
_BLOCK_BYTES = 1 << 16
_STEPS = ("steps", "values")
_FRAME = ("start", "phase", "unverified", "end")
"""What a run writes even if it has no step left to make."""


def _plain(value: Any) -> Any:
    """Strict JSON has no NaN and no infinity: write them as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


class Record:
    """Appends lines to a record. A line is one write, so a killed process tears at most its last one."""

    def __init__(self, path: Path | None) -> None:
        self._file = _NO_FILE
        self._is_torn = False
        if path is not None:  # on all processes of a run but the first nothing is written
            self._file = runfiles.open_in_place(path, os.O_APPEND)
            self._is_torn = _ends_torn(self._file)
        self.num_lost = 0
        """Lines that could not be written, for example because the disk was full."""
        self._known: set[str] | None = None
        self._held: list[dict[str, Any]] = []

    def hold_if_finished(self, path: Path, *, cursor: int) -> None:
        """If no step is left, hold lines back until one says something new: to look again adds none."""
        known = [event for event in read(path) if event["kind"] not in _STEPS]
        ends = [event.get("end") for event in known if event["kind"] == "phase"]
        kinds = [event["kind"] for event in known]
        if ends and ends[-1] == cursor and "start" in kinds and kinds[-1] == "end":
            self._known = set(map(_content, known))

    def write(self, kind: str, **fields: Any) -> None:
        """Append one line. A full disk loses the line and counts it: it must not end the training."""
        event = {"kind": kind, "time_s": round(time.time(), 3), **fields}
        if self._known is not None:
            self._held.append(event)
            if kind in _FRAME or _content(event) in self._known:
                return
            self._known = None
        for each in self._held or [event]:
            self._append(each)
        self._held.clear()

    def _append(self, event: dict[str, Any]) -> None:
        if self._file == _NO_FILE:
            return
        try:
            line = json.dumps(event, allow_nan=False, separators=(",", ":"))
        except ValueError:
            line = json.dumps(_plain(event), allow_nan=False, separators=(",", ":"))
        data = (("\n" if self._is_torn else "") + line + "\n").encode()
        try:
            num_written = os.write(self._file, data)
        except OSError:
            num_written = 0
        if num_written == len(data):
            self._is_torn = False
        else:
            self._is_torn = self._is_torn or num_written > 0
            self.num_lost += 1

    def close(self) -> None:
        """Close the file; nothing is buffered here, but some network disks report a failed write only now."""
        file, self._file = self._file, _NO_FILE
        if file != _NO_FILE:
            try:
                os.close(file)
            except OSError:
                self.num_lost += 1

    def __del__(self) -> None:
        self.close()


def _content(event: dict[str, Any]) -> str:
    """Return what an event says, whenever it says it."""
    return json.dumps(_plain({key: value for key, value in event.items() if key != "time_s"}), sort_keys=True)


def _ends_torn(file: int) -> bool:
    size = os.lseek(file, 0, os.SEEK_END)
    return size > 0 and os.pread(file, 1, size - 1) != b"\n"


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a record in the order written; torn lines of killed processes are passed over."""
    with opened(path) as lines:
        while block := lines.readlines(_BLOCK_BYTES):
            yield from parse(path, block)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a record for reading; a pipe in its place must not hold who reads a stranger's folder."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise TruestepError(f"{path} is not a regular file. Pass the folder of a run.")
        with os.fdopen(handle, "rb") as file:
            yield file
    except FileNotFoundError:
        raise
    except OSError as error:
        raise TruestepError(f"{path} cannot be read ({error.strerror or error}).") from error


def _check_version(path: Path, version: object) -> None:
    if isinstance(version, int) and version > VERSION:
        raise TruestepError(
            f"{path} was written by a newer truestep (record version {version}, this one reads up to "
            f"{VERSION}). Upgrade: pip install -U truestep."
        )


def parse(path: Path, lines: list[bytes]) -> list[dict[str, Any]]:
    """Return the events of some lines of a record; torn lines, and what is none of ours, are left out."""
    try:
        events = json.loads(b"[%b]" % b",".join(lines))  # half the time of line by line
    except (ValueError, RecursionError):
        events = None
    if events is None or len(events) != len(lines):
        events = map(_parse_line, lines)
    found = [event for event in events if isinstance(event, dict) and isinstance(event.get("kind"), str)]
    for event in found:
        if event["kind"] == "start":
            _check_version(path, event.get("version"))
    return found


def _parse_line(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def number(value: Any) -> float:
    """Read a number as the record writes it: `nan` and `inf` are words there."""
    if value.__class__ is float:
        return value
    if isinstance(value, str) and value.lstrip("-") not in ("nan", "inf"):
        raise ValueError(value)
    return float(value)


def step_number(index: int) -> int:
    """Return a step's number as people count, from 1; records count steps from 0."""
    return index + 1


def read_steps(path: Path) -> dict[int, dict[str, Any]]:
    """Return {step: {"loss": ..., name: ...}} as the run stands now.

    A process that was killed may have recorded steps after its last snapshot. The next one starts from
    the snapshot and records them again; steps from its start on are therefore dropped first.
    """
    steps: dict[int, dict[str, Any]] = {}
    for event in read(path):
        # A line that makes no sense is passed over, as a torn one is: somebody else may have written it.
        with contextlib.suppress(KeyError, TypeError, ValueError, IndexError, OverflowError):
            _add_steps(steps, event)
    return steps


def _add_steps(steps: dict[int, dict[str, Any]], event: dict[str, Any]) -> None:
    if event["kind"] == "start":
        for step in [step for step in steps if step >= event["cursor"]]:
            del steps[step]
    elif event["kind"] == "steps":
        for offset, loss in enumerate(event["loss"]):
            steps[int(event["first"]) + offset] = {"loss": loss, "end_us": event["end_us"][offset]}
    elif event["kind"] == "values":
        for step, value in zip(event["steps"], event["values"], strict=True):
            steps.setdefault(int(step), {})[event["name"]] = value
