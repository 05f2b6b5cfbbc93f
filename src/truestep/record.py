"""The record: one append-only JSON-lines file per run that every command writes and reads.

Owns the file format. Leaves to others what is written, and fetching values from a device.
"""

import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from truestep.errors import TruestepError

VERSION = 1
_NO_FILE = -1


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
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._is_torn = _ends_torn(self._file)
        self.num_lost = 0
        """Lines that could not be written, for example because the disk was full."""

    def write(self, kind: str, **fields: Any) -> None:
        """Append one line. A full disk loses the line and counts it: it must not end the training."""
        if self._file == _NO_FILE:
            return
        event = {"kind": kind, "time_s": round(time.time(), 3), **fields}
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
        """Close the file; nothing is buffered here."""
        if self._file != _NO_FILE:
            os.close(self._file)
            self._file = _NO_FILE


def _ends_torn(file: int) -> bool:
    size = os.lseek(file, 0, os.SEEK_END)
    return size > 0 and os.pread(file, 1, size - 1) != b"\n"


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a record in the order written; torn lines of killed processes are passed over."""
    with path.open("rb") as lines:
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if event["kind"] == "start" and event["version"] > VERSION:
                raise TruestepError(
                    f"{path} was written by a newer truestep (record version {event['version']}, this one "
                    f"reads up to {VERSION}). Upgrade: pip install -U truestep."
                )
            yield event


def read_steps(path: Path) -> dict[int, dict[str, Any]]:
    """Return {step: {"loss": ..., name: ...}} as the run stands now.

    A process that was killed may have recorded steps after its last snapshot. The next one starts from
    the snapshot and records them again; steps from its start on are therefore dropped first.
    """
    steps: dict[int, dict[str, Any]] = {}
    for event in read(path):
        if event["kind"] == "start":
            for step in [step for step in steps if step >= event["cursor"]]:
                del steps[step]
        elif event["kind"] == "steps":
            for offset, loss in enumerate(event["loss"]):
                steps[event["first"] + offset] = {"loss": loss, "end_us": event["end_us"][offset]}
        elif event["kind"] == "values":
            for step, value in zip(event["steps"], event["values"], strict=True):
                steps.setdefault(step, {})[event["name"]] = value
    return steps
