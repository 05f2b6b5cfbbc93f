"""The record."""

import errno
import math
import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from truestep.errors import TruestepError
from truestep.record import Record, read, read_steps


def _start(record: Record, cursor: int) -> None:
    record.write("start", version=1, cursor=cursor)


def test_a_torn_last_line_is_ignored_and_the_next_process_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    first = Record(path)
    _start(first, 0)
    first.close()
    with path.open("ab") as file:
        file.write(b'{"kind":"steps","fir')
    second = Record(path)
    second.write("evaluate", value=1)
    second.close()
    assert [event["kind"] for event in read(path)] == ["start", "evaluate"]


def test_steps_recorded_after_the_last_snapshot_are_replaced_by_the_resumed_ones(tmp_path: Path) -> None:
    record = Record(tmp_path / "record.jsonl")
    _start(record, 0)
    record.write("steps", first=0, loss=[3.0, 2.0, 1.0], end_us=[1, 2, 3])
    record.write("values", name="lr", steps=[2], values=[0.5])
    _start(record, 1)
    record.write("steps", first=1, loss=[2.5], end_us=[1])
    steps = read_steps(tmp_path / "record.jsonl")
    assert {step: values["loss"] for step, values in steps.items()} == {0: 3.0, 1: 2.5}


def _again(path: Path, value: float) -> list[str]:
    """A finished script that is run again: it begins, evaluates and ends."""
    record = Record(path)
    if path.stat().st_size:
        record.hold_if_finished(path, cursor=9)
    _start(record, 9)
    record.write("phase", first=0, end=9)
    record.write("evaluate", name="accuracy", cursor=9, value=value)
    record.write("end", cursor=9)
    record.close()
    return [event["kind"] for event in read(path)]


def test_a_finished_script_that_says_nothing_new_adds_no_line(tmp_path: Path) -> None:
    once = ["start", "phase", "evaluate", "end"]
    assert _again(tmp_path / "record.jsonl", math.nan) == once
    assert _again(tmp_path / "record.jsonl", math.nan) == once
    assert _again(tmp_path / "record.jsonl", 0.5) == once * 2, "another result is news, and so is its start"


def test_values_that_json_does_not_know_are_written_as_words(tmp_path: Path) -> None:
    record = Record(tmp_path / "record.jsonl")
    record.write("values", name="loss", steps=[1, 2], values=[math.nan, -math.inf])
    assert next(read(tmp_path / "record.jsonl"))["values"] == ["nan", "-inf"]


def test_a_newer_record_is_refused_with_advice(tmp_path: Path) -> None:
    record = Record(tmp_path / "record.jsonl")
    record.write("start", version=99, cursor=0)
    with pytest.raises(TruestepError, match=r"newer truestep \(record version 99.*Upgrade"):
        list(read(tmp_path / "record.jsonl"))


def test_a_full_disk_loses_the_line_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = Record(tmp_path / "record.jsonl")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(os, "write", Mock(side_effect=full))
    record.write("steps", first=0)
    monkeypatch.undo()
    assert record.num_lost == 1


def test_two_torn_lines_are_not_taken_for_one_event(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    path.write_text('{"kind":"a"}\n{"kind":"steps","loss":[1\n2]}\n{"kind":"b"}\n[]\n')
    assert [event["kind"] for event in read(path)] == ["a", "b"]
