"""Reading a run's folder into a story."""

from pathlib import Path

import numpy as np
import pytest

from tests.report.records import NAN, killed_and_resumed, start, steps
from truestep.errors import UsageError
from truestep.record import Record, read_steps
from truestep.report import measures
from truestep.report.runs import Story, read_run


def _read(tmp_path: Path, *lines: str) -> Story:
    (tmp_path / "record.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return read_run(tmp_path)


def test_steps_after_a_resume_replace_those_of_the_killed_process(tmp_path: Path) -> None:
    story = read_run(killed_and_resumed(tmp_path))
    assert story.loss.steps.tolist() == list(range(1, 301)), "counted from 1, as people count"
    assert story.loss.values[149] == 1.8 - 29 / 100
    assert story.values["grad_norm"].values.tolist() == [1.0] * 120 + [2.0] * 180
    assert [item.value for item in story.evaluations] == [0.7, 0.9]
    known = read_steps(tmp_path / "record.jsonl")
    assert [known[step]["loss"] for step in range(300)] == story.loss.values.tolist()


def test_kills_resumes_processes_and_lineage_breaks_are_marked(tmp_path: Path) -> None:
    story = read_run(killed_and_resumed(tmp_path))
    assert [(mark.kind, mark.step) for mark in story.marks] == [
        ("kill", 150),
        ("resume", 120),
        ("processes", 120),
        ("lineage", 120),
    ]
    assert [life.num_void for life in story.lives] == [30, 0]
    assert [life.is_ended for life in story.lives] == [False, True]


def test_a_failed_audit_and_a_step_without_a_witness_are_marked(tmp_path: Path) -> None:
    record = Record(tmp_path / "record.jsonl")
    start(record, 4)
    record.write("unverified", cursor=4)
    record.write("audit", step=6, ranks=[1, 2], hosts=["a", "b"], what="computes other bits", lane=0)
    story = read_run(tmp_path)
    assert [(mark.kind, mark.step, mark.words) for mark in story.marks] == [
        ("unverified", 4, "resumed after step 4 from a snapshot without a witness"),
        ("audit", 7, "an audit failed at step 7, rank 1, 2: computes other bits"),
    ]
    assert story.strange == []


def test_time_goes_on_over_lives_and_loops_without_their_pauses(tmp_path: Path) -> None:
    record = Record(tmp_path / "record.jsonl")
    start(record, 0)
    steps(record, 0, [1.0] * 4, step_us=1_000_000)
    steps(record, 4, [1.0] * 2, step_us=1_000_000)  # a second loop: its clock begins anew
    start(record, 5)
    steps(record, 5, [1.0] * 2, step_us=1_000_000)
    assert read_run(tmp_path).seconds.tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_a_loop_whose_first_step_is_slow_counts_from_its_own_start_too(tmp_path: Path) -> None:
    record = Record(tmp_path / "record.jsonl")
    start(record, 0)
    record.write("phase", first=0, end=2)
    steps(record, 0, [1.0] * 2, step_us=1_000_000)
    record.write("phase", first=2, end=4)
    steps(record, 2, [1.0] * 2, step_us=5_000_000)
    assert read_run(tmp_path).seconds.tolist() == [1, 2, 7, 12]


def test_evaluations_are_taken_apart_as_in_exports(tmp_path: Path) -> None:
    record = Record(tmp_path / "record.jsonl")
    value = {"acc": 0.5, "confusion": [[9, 1], [0, 10]], "wide": [[1, 2, 3]], "f1": [0.5, 0.25]}
    record.write("evaluate", name="each", cursor=3, value=value)
    story = read_run(tmp_path)
    found = {name: series.values.tolist() for name, series in measures.evaluation_series(story).items()}
    assert found == {"each/acc": [0.5], "each/f1/0": [0.5], "each/f1/1": [0.25]}


def test_speed_is_steps_over_seconds(tmp_path: Path) -> None:
    speed = measures.speed(read_run(killed_and_resumed(tmp_path)))
    assert len(speed) > 20 and np.allclose(speed.values, 1000)


@pytest.mark.practice("P70")
def test_p70_waiting_for_data_is_a_share_of_the_time(tmp_path: Path) -> None:
    """A report shows which share of the time a run waited for data."""
    shares = measures.time_shares(read_run(killed_and_resumed(tmp_path)))
    assert shares == pytest.approx({"waiting for data": 0.1, "everything else": 0.9})


def test_torn_lines_are_counted_and_strange_ones_kept(tmp_path: Path) -> None:
    story = _read(
        tmp_path,
        '{"kind":"steps","first":0,"loss":[1.0],"end_us":[5],"time_s":1}',
        '{"kind":"steps","fir',
        '{"kind":"steps","first":1,"loss":[1.0,2.0],"end_us":[5],"time_s":1}',
        '{"kind":"steps","first":1,"loss":["<b>"],"end_us":[5],"time_s":1}',
        '{"kind":"values","name":"x","steps":[1e400],"values":[1],"time_s":1}',
        '{"kind":"new-in-version-9","time_s":1}',
        "[" * 100_000,
        '["a list"]',
        "17",
    )
    assert story.loss.values.tolist() == [1.0]
    assert story.num_torn == 4
    assert len(story.strange) == 4 and "new-in-version-9" in story.strange[-1]


def test_values_that_are_no_numbers_are_kept_as_such(tmp_path: Path) -> None:
    record = Record(tmp_path / "record.jsonl")
    start(record, 0)
    steps(record, 0, [1.0, NAN, float("inf"), -1e308])
    found = read_run(tmp_path).loss.values
    assert np.isnan(found[1]) and np.isinf(found[2]) and found[3] == -1e308


def test_a_folder_without_a_record_is_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no record.jsonl. Pass the folder of a run"):
        read_run(tmp_path)
