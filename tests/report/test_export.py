"""Exports: read back by the tools that they are for."""

import csv
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.report.growing import Writer
from truestep.errors import UsageError
from truestep.report.export import export, open_run
from truestep.report.live import Live
from truestep.report.readings import evaluation_curves
from truestep.report.tensorboard import Events

CONFUSION = [[9, 1], [0, 10]]


def resumed_run(folder: Path) -> Writer:
    """Steps 0 to 4, killed, resumed at 3, to 5, with an evaluation; the void losses are the hundreds."""
    writer = Writer(folder)
    writer.start(end=6)
    writer.steps(0, [1.0, 0.1 + 0.2, 1 / 3, 100.0, 100.0])
    writer.values("lr", [0, 3], [0.5, 100.0])
    writer.record.write("evaluate", name="accuracy", cursor=5, value=100.0)
    writer.start(cursor=3, end=6)
    writer.steps(3, [0.25, float("nan"), 0.125])
    writer.values("lr", [4], [0.25])
    writer.record.write("evaluate", name="accuracy", cursor=6, value=0.75)
    writer.record.write("evaluate", name="each", cursor=6, value={"f1": [0.5, 0.25], "confusion": CONFUSION})
    writer.record.write("end", cursor=6)
    return writer


def test_csv_gives_each_step_once_with_the_same_bits(tmp_path: Path) -> None:
    resumed_run(tmp_path)
    path = export(tmp_path, "csv")
    assert path == tmp_path / "record.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [0, 1, 2, 3, 4, 5, 6]
    assert [float(row["loss"]) for row in rows[:4]] == [1.0, 0.1 + 0.2, 1 / 3, 0.25]
    assert rows[4]["loss"] == "nan"
    assert [row["lr"] for row in rows] == ["0.5", "", "", "", "0.25", "", ""]
    assert [row["evaluate/accuracy"] for row in rows] == [""] * 6 + ["0.75"]
    assert rows[6]["evaluate/each/f1/1"] == "0.25"
    assert abs(float(rows[0]["time_s"]) - time.time()) < 60


def test_names_in_a_csv_are_no_formulas_and_steer_no_terminal(tmp_path: Path) -> None:
    names = ["=cmd|' /C calc'!A0", "+1+1", "@SUM(A1)", "-a", " =1", "\t=1", "＝1", "\x1b[2Jx", "a;=b", "-1.5"]  # noqa: RUF001
    writer = Writer(tmp_path)
    writer.start()
    writer.steps(0, [-1.5])
    for name in names:
        writer.record.write("values", name=name, steps=[0], values=[-2.5])
    with export(tmp_path, "csv").open(newline="", encoding="utf-8") as file:
        head, row = csv.reader(file)
    cells = dict(zip(head, row, strict=True))
    assert cells["loss"] == "-1.5" and cells["-1.5"] == "-2.5"
    assert not [cell for cell in head if cell.strip()[:1] in tuple("=+-@＝") and cell != "-1.5"]  # noqa: RUF001
    assert all(cell.isprintable() for cell in head)
    assert {"'=cmd|' /C calc'!A0", "\\x1b[2Jx", "\\t=1", "a;'=b"} <= set(head)


def events_of(folder: Path) -> Any:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0})
    events.Reload()
    return events


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    return [(item.step, item.value) for item in events_of(folder).Scalars(name)]


def test_tensorboard_itself_reads_losses_values_evaluations_and_matrices(tmp_path: Path) -> None:
    resumed_run(tmp_path)
    folder = export(tmp_path, "tensorboard")
    events = events_of(folder)
    assert events.Tags()["scalars"] == [
        "loss",
        "lr",
        "evaluate/accuracy",
        "evaluate/each/f1/0",
        "evaluate/each/f1/1",
    ]
    assert [(step, value) for step, value in scalars(folder, "loss") if step != 4] == [
        (0, 1.0),
        (1, pytest.approx(0.3)),  # TensorBoard keeps 32 bits
        (2, pytest.approx(1 / 3)),
        (3, 0.25),
        (5, 0.125),
    ]
    assert scalars(folder, "lr") == [(0, 0.5), (4, 0.25)]
    assert scalars(folder, "evaluate/accuracy") == [(6, 0.75)]
    times = [item.wall_time for item in events.Scalars("loss")]
    assert times == sorted(times)


def test_tensorboard_following_a_run_forgets_what_a_kill_made_void(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "run")
    live = Live(tmp_path / "run")
    with Events(tmp_path / "events") as events:
        events.add(live)
        writer.start()
        writer.steps(0, [5.0, 4.0, 100.0, 100.0])
        writer.record.write("evaluate", name="accuracy", cursor=2, value=0.5)
        live.poll()
        events.add(live)
        assert scalars(tmp_path / "events", "loss") == [(0, 5.0), (1, 4.0), (2, 100.0), (3, 100.0)]
        time.sleep(1.1)  # files are read in the order of their names, which hold the second
        writer.start(cursor=2)
        writer.steps(2, [3.0])
        live.poll()
        events.add(live)
        events.add(live)
    assert scalars(tmp_path / "events", "loss") == [(0, 5.0), (1, 4.0), (2, 3.0)]
    assert scalars(tmp_path / "events", "evaluate/accuracy") == [(2, 0.5)]


def test_tensorboard_writes_another_run_in_the_same_place_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "run/record.jsonl"
    writer = Writer(tmp_path / "run")
    writer.start()
    writer.steps(0, [5.0, 4.0])
    live = Live(tmp_path / "run")
    with Events(tmp_path / "events") as events:
        live.poll()
        events.add(live)
        time.sleep(1.1)  # files are read in the order of their names, which hold the second
        text = path.read_text().replace('"run":"r1"', '"run":"r2"').replace("[5.0,4.0]", "[2.0,1.0]")
        (tmp_path / "new").write_text(text)
        (tmp_path / "new").rename(path)
        live.poll()
        events.add(live)
    assert scalars(tmp_path / "events", "loss") == [(0, 2.0), (1, 1.0)]


def test_follow_ends_when_the_run_is_done(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "run")
    thread = threading.Thread(target=export, args=(tmp_path / "run", "tensorboard"), kwargs={"follow": True})
    thread.start()
    writer.start(end=2)
    writer.steps(0, [2.0])
    time.sleep(1.5)
    assert thread.is_alive()
    writer.steps(1, [1.0])
    writer.record.write("end", cursor=2)
    thread.join(30)
    assert not thread.is_alive()
    assert scalars(tmp_path / "run/tensorboard", "loss") == [(0, 2.0), (1, 1.0)]


def test_evaluations_are_taken_apart_into_numbers(tmp_path: Path) -> None:
    resumed_run(tmp_path)
    live = open_run(tmp_path)
    assert {name: list(curve) for name, curve in evaluation_curves(live.facts).items()} == {
        "accuracy": [(6, 0.75)],
        "each/f1/0": [(6, 0.5)],
        "each/f1/1": [(6, 0.25)],
    }


def test_what_cannot_be_exported_is_said_with_advice(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no record.jsonl. Pass the folder of a run"):
        export(tmp_path, "csv")
    resumed_run(tmp_path)
    with pytest.raises(UsageError, match=r"csv or tensorboard, got 'xlsx'"):
        export(tmp_path, "xlsx")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"only TensorBoard's files can be followed"):
        export(tmp_path, "csv", follow=True)


@pytest.mark.parametrize(("to", "package"), [("csv", "csv"), ("tensorboard", "tensorboard")])
@pytest.mark.parametrize("place", ["file/out", "folder"])
def test_a_place_that_cannot_be_written_is_told_with_what_to_do(
    tmp_path: Path, to: Any, package: str, place: str
) -> None:
    pytest.importorskip(package)
    resumed_run(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    if (to, place) == ("tensorboard", "folder"):
        place = "file"
    with pytest.raises(UsageError, match=r"cannot be written \(.+\)\. Pass another one with --out\."):
        export(tmp_path, to, out=tmp_path / place)


def test_values_logged_under_names_of_ours_are_columns_of_their_own(tmp_path: Path) -> None:
    names = ("loss", "steps_per_s", "data_wait_s", "time_s", "step")
    writer = Writer(tmp_path)
    writer.start()
    for name in names:
        writer.values(name, [0], [7.0])
    writer.record.write("steps", first=0, loss=[1.0], end_us=[1], wait_us=[2_000_000])
    with export(tmp_path, "csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert [row[f"{name} (logged)"] for name in names] == ["7.0"] * 5
    assert (row["step"], row["loss"], row["data_wait_s"]) == ("0", "1.0", "2.0")
    assert abs(float(row["time_s"]) - time.time()) < 60


def test_a_missing_package_is_named_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resumed_run(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(UsageError, match=r"Install it: pip install 'truestep\[tensorboard\]'"):
        export(tmp_path, "tensorboard")
