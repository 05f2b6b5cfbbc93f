"""Distributions, pictures and texts: in the report, and read back by TensorBoard."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.report.growing import Writer
from tests.report.hostile import PNG, hostile_run
from tests.report.records import killed_and_resumed, start
from truestep.record import Record
from truestep.report import charts, shown
from truestep.report.compose import write_report
from truestep.report.exhibits import Spread, fair
from truestep.report.export import export
from truestep.report.pngs import MAX_BYTES, Png, read_png
from truestep.report.runs import read_run
from truestep.report.thin import Series
from truestep.run.train.exhibits import histogram, write_exhibit

VALUES = np.random.default_rng(3).normal(2.0, 0.5, 20_000)


def _log(folder: Path, name: str, thing: Any, *, cursor: int) -> None:
    record = Record(folder / "record.jsonl")
    write_exhibit(name, thing, record=record, folder=folder, cursor=cursor)
    record.close()


def test_quantiles_from_bins_are_those_of_the_values(tmp_path: Path) -> None:
    _log(tmp_path, "a", VALUES, cursor=5)
    spread = read_run(tmp_path).exhibits.spreads["a"][5]
    exact = np.quantile(VALUES, [0.05, 0.25, 0.5, 0.75, 0.95])
    width = (spread.high - spread.low) / 64
    assert np.abs(np.array(spread.quantiles) - exact).max() < width
    assert (spread.low, spread.high) == (VALUES.min(), VALUES.max())


@pytest.mark.parametrize("values", [[7.0, 7.0], [0.0, 0.0, 0.0, 1.0], [-1e308, 1e308]])
def test_quantiles_stay_within_the_range(tmp_path: Path, values: list[float]) -> None:
    _log(tmp_path, "a", np.array(values), cursor=0)
    spread = read_run(tmp_path).exhibits.spreads["a"][0]
    all_of_them = [spread.low, *spread.quantiles, spread.high]
    assert all_of_them == pytest.approx(sorted(all_of_them))
    assert np.isfinite(all_of_them).all()


def test_a_resume_makes_void_what_was_shown_after_its_step(tmp_path: Path) -> None:
    record = Record(tmp_path / "record.jsonl")
    start(record, 0)
    for cursor in (10, 20, 30):
        record.write("text", name="a", cursor=cursor, text=f"first {cursor}")
        record.write("picture", name="a", cursor=cursor, file="a.png")
        record.write("histogram", name="a", cursor=cursor, **histogram(VALUES))
    start(record, 20)
    record.write("text", name="a", cursor=20, text="second 20")
    found = read_run(tmp_path).exhibits
    assert [item.content for item in found.texts.values()] == ["first 10", "second 20"]
    assert [item.cursor for item in found.pictures.values()] == [10, 20]
    assert list(found.spreads["a"]) == [10, 20]


def test_the_newest_of_every_name_comes_before_the_second_of_any(tmp_path: Path) -> None:
    record = Record(tmp_path / "record.jsonl")
    for name, cursor in [("often", 1), ("often", 2), ("often", 3), ("once", 1)]:
        record.write("picture", name=name, cursor=cursor, file="a.png")
    ordered = [(item.name, item.cursor) for item in fair(read_run(tmp_path).exhibits.pictures)]
    assert ordered == [("often", 3), ("once", 1), ("often", 2), ("often", 1)]


def _spreads(num: int, *, spike: int) -> dict[int, Spread]:
    return {
        step: Spread(
            low=-100.0 if step == spike else -1.0,
            high=1.0,
            quantiles=(-0.5, -0.25, 0.0, 0.25, 0.5),
            mean=0,
            std=1,
            num=9,
            num_nonfinite=0,
        )
        for step in range(num)
    }


def test_a_long_row_of_distributions_is_thinned_and_no_extreme_is_lost() -> None:
    columns = shown._columns(_spreads(50_000, spike=31_234))
    chart = charts.bands("a", columns, colour="var(--series-1)")
    assert chart is not None
    outer, inner, median, lowest, highest = chart.traces
    assert len(median["x"]) < 2_000
    assert lowest["y"][lowest["x"].index(31_234)] == -100
    assert lowest["visible"] == highest["visible"] == "legendonly"
    assert "Lowest of all -100 at step 31,234" in chart.words
    assert max(outer["y"]) == 0.5 and max(inner["y"]) == 0.25
    assert len(json.dumps(chart.traces)) < 300_000


def test_steps_without_a_number_are_gaps_in_the_bands() -> None:
    values = np.array([1.0, np.nan, 3.0, 4.0])
    column = Series(steps=np.arange(4), values=values)
    chart = charts.bands("a", [column] * 7, colour="red")
    assert chart is not None
    assert chart.traces[0]["x"] == [0, 0, 0, None, 2, 3, 3, 2, 2]
    assert chart.traces[-1]["name"] == "not a number at 1 steps"
    nothing = Series(steps=np.arange(1), values=np.array([np.nan]))
    assert charts.bands("a", [nothing] * 7, colour="red") is None


def test_the_report_has_distributions_pictures_and_texts(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    killed_and_resumed(tmp_path)
    for cursor in range(0, 300, 10):
        _log(tmp_path, "weight", VALUES, cursor=cursor)
        _log(tmp_path, "pixels", np.full((8, 8), cursor // 2, dtype=np.uint8), cursor=cursor)
    _log(tmp_path, "words", "<b>once</b>\nupon", cursor=300)
    page = write_report([tmp_path]).read_text()
    assert page.count("data:image/png;base64,") == 24
    assert "24 pictures of 30 and 1 text, the newest first." in page
    assert 'alt="pixels after 290 steps"' in page and "after 50 steps: " in page
    assert "&lt;b&gt;once&lt;/b&gt;\nupon" in page
    assert "Distributions" in page and "All distributions in numbers (1)" in page


def test_pictures_of_one_report_have_a_limit_together(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    noise = np.random.default_rng(1).integers(0, 256, (1000, 1100), dtype=np.uint8)
    for cursor in range(4):
        _log(tmp_path, "noise", noise, cursor=cursor)
    path = write_report([tmp_path])
    assert "2 pictures of 4, the newest first." in path.read_text()
    assert path.read_text().count("no room left") == 2


def test_only_pictures_inside_the_folder_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "pictures").mkdir(parents=True)
    (folder / "pictures/good.png").write_bytes(PNG)
    (folder / "inside.png").symlink_to(folder / "pictures/good.png")
    for file in ("pictures/good.png", "pictures/../pictures/good.png", "inside.png"):
        assert read_png(folder, file) == Png(data=PNG, width=1, height=1)
    (tmp_path / "secret.png").write_bytes(PNG)
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    (folder / "way").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe.png")
    (folder / "text.png").write_text("<script>")
    (folder / "torn.png").write_bytes(PNG[:20])
    (folder / "large.png").write_bytes(PNG + b"0" * MAX_BYTES)
    (folder / "bomb.png").write_bytes(PNG[:16] + b"\x00\x00\x3f\xff" * 2 + PNG[24:])
    refused = {
        "../secret.png": "outside the run's folder",
        str(tmp_path / "secret.png"): "outside the run's folder",
        "link.png": "outside the run's folder",
        "way/secret.png": "outside the run's folder",
        "pipe.png": "no file",
        "pictures": "Is a directory",
        "text.png": "no PNG",
        "torn.png": "no PNG",
        "large.png": "larger than 3 MB",
        "bomb.png": "too large, 16,383 x 16,383 pixels",
        "nowhere.png": "No such file or directory",
        "\0": "no name of a file",
    }
    assert {file: read_png(folder, file) for file in refused} == refused


def events_of(folder: Path) -> Any:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    nothing_dropped = {"scalars": 0, "images": 0, "histograms": 0, "tensors": 0}
    events = accumulator.EventAccumulator(str(folder), size_guidance=nothing_dropped)
    events.Reload()
    return events


def test_tensorboard_itself_reads_distributions_pictures_and_texts(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.start(end=6)
    writer.steps(0, [1.0] * 6)
    _log(tmp_path, "weight", np.append(VALUES, np.nan), cursor=2)
    _log(tmp_path, "weight", np.full(5, 3.0), cursor=4)
    _log(tmp_path, "weight", np.full(5, np.nan), cursor=6)
    _log(tmp_path, "pixels", np.zeros((4, 7, 3), dtype=np.uint8), cursor=4)
    _log(tmp_path, "words", "once upon", cursor=4)
    writer.record.write("end", cursor=6)
    events = events_of(export(tmp_path, "tensorboard"))
    first, second = events.Histograms("weight")
    assert (first.step, second.step) == (2, 4)
    value = first.histogram_value
    assert (value.min, value.max, value.num) == (VALUES.min(), VALUES.max(), len(VALUES))
    assert value.sum == pytest.approx(VALUES.sum())
    assert value.sum_squares == pytest.approx(np.square(VALUES).sum())
    assert sum(value.bucket) == len(VALUES) and len(value.bucket_limit) == 64
    assert (list(second.histogram_value.bucket), list(second.histogram_value.bucket_limit)) == ([5.0], [3.0])
    (image,) = events.Images("pixels")
    file = tmp_path / "pictures/pixels-000000000004.png"
    assert (image.step, image.width, image.height) == (4, 7, 4)
    assert image.encoded_image_string == file.read_bytes()
    (text,) = events.Tensors("words/text_summary")
    assert (text.step, text.tensor_proto.string_val[0]) == (4, b"once upon")


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # TensorBoard's, of 1e308
def test_a_hostile_record_puts_no_foreign_file_into_tensorboard(tmp_path: Path) -> None:
    folder = export(hostile_run(tmp_path, num_findings=1), "tensorboard", out=tmp_path / "events")
    events = events_of(folder)
    images = [image for tag in events.Tags()["images"] for image in events.Images(tag)]
    assert [image.encoded_image_string for image in images if image.width == 1] == [PNG]
