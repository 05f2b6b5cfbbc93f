"""The report's page, without a browser."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.report.hostile import ALL, hostile_run
from tests.report.records import NAN, killed_and_resumed, start, steps
from truestep.errors import UsageError
from truestep.record import Record
from truestep.report import charts, compose, numerals, sections
from truestep.report.compose import write_report
from truestep.report.markup import tag, text
from truestep.report.runs import Story, read_run
from truestep.report.thin import Series

_WORDS = "findings code severity file line message evidence cost fix count consequences not_seen steps same "
_WORDS += (
    "runs digest parted_at first_difference step what operation reason trials knob status ratio median low "
)
_WORDS += "memory learning lines profile shares share words"
WORDS = _WORDS.split()


class Elements(HTMLParser):
    """Collects elements with their attributes, and the text outside of scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside not in ("script", "style"):
            self.text += data


def _page(folder: Path) -> Elements:
    return Elements(write_report(folder).read_text())


def test_the_head_sums_up_the_run_in_one_line(tmp_path: Path) -> None:
    said = _page(killed_and_resumed(tmp_path)).text
    assert "300 of 300 steps in 0.3 s, last loss 0.01; resumed once (killed once)." in said


@pytest.mark.verdict("all done")
def test_a_run_that_was_stopped_before_its_last_step_does_not_look_finished(tmp_path: Path) -> None:
    record = Record(tmp_path / "record.jsonl")
    start(record, 0)
    record.write("phase", first=0, end=300)
    steps(record, 0, [1.0] * 40)
    record.write("end", cursor=40)  # what Ctrl-C leaves
    record.close()
    said = " ".join(_page(tmp_path).text.split())
    assert "stopped after 40 of 300 steps" in said and "stop stopped after step 40" in said
    assert "all done" not in said
    assert "done" not in said
    start(record := Record(tmp_path / "record.jsonl"), 40)
    steps(record, 40, [1.0] * 260)
    record.write("end", cursor=300)
    record.close()
    story = read_run(tmp_path)
    assert [life.is_stopped for life in story.lives] == [True, False]
    assert "300 of 300 steps" in _page(tmp_path).text and "stopped after 300" not in _page(tmp_path).text


@pytest.mark.parametrize("value", [0.003, -2.0, 1e300, 3e-320])
def test_a_value_that_never_changes_is_a_line_of_words(value: float) -> None:
    series = Series(steps=np.arange(5), values=np.full(5, value))
    chart = charts.curves("Learning rate", [("learning rate", series)], unit="MB", is_stepped=True)
    assert chart is not None and chart.drawing is None
    assert chart.words == f"{value:.4g} MB at every step."


@settings(max_examples=60)
@given(
    values=st.lists(st.floats(), min_size=2, max_size=30),
    switches=st.fixed_dictionaries(dict.fromkeys(("has_zero", "may_log", "is_stepped"), st.booleans())),
)
def test_every_curve_is_inside_of_its_chart(values: list[float], switches: dict[str, bool]) -> None:
    series = Series(steps=np.arange(1, len(values) + 1), values=np.array(values))
    chart = charts.curves("Loss", [("loss", series)], **switches)
    if chart is None or chart.drawing is None:
        assert len(set(series.finite.values.tolist())) <= 1
        return
    drawn = [path["d"] or "" for name, path in Elements(chart.drawing).elements if name == "path"]
    places = [float(number) for path in drawn for number in re.findall(r"-?[\d.]+", path)]
    assert places and all(-0.1 <= place <= 1000.1 for place in places)


def test_a_curve_is_drawn_to_scale_and_interrupted_where_it_is_no_number() -> None:
    series = Series(steps=np.array([1, 2, 3, 4]), values=np.array([0.0, 10.0, NAN, 5.0]))
    chart = charts.curves("Loss", [("loss", series)])
    assert chart is not None and chart.drawing is not None
    (path,) = [path["d"] for name, path in Elements(chart.drawing).elements if name == "path"][-1:]
    assert path == "M250.0 954.5h0L500.0 45.5M1000.0 500.0h0"
    assert chart.words.endswith("Not a number at 1 step.")
    assert Elements(chart.drawing).text.split() == ["0", "2", "4", "6", "8", "10", "0", "1", "2", "3", "4"]


def test_values_that_are_far_apart_have_a_logarithmic_scale() -> None:
    series = Series(steps=np.arange(2), values=np.array([1e-3, 1e3]))
    labels = [
        Elements(chart.drawing).text
        for may_log in (True, False)
        if (chart := charts.curves("Loss", [("loss", series)], may_log=may_log)) and chart.drawing
    ]
    assert ["0.001" in label and "1000" in label for label in labels] == [True, False]


def test_the_loss_of_an_evaluation_is_drawn_beside_that_of_each_step(tmp_path: Path) -> None:
    record = Record(killed_and_resumed(tmp_path) / "record.jsonl")
    for cursor in (100, 200, 300):
        record.write("evaluate", name="valid", cursor=cursor, value={"loss": 1 / cursor, "accuracy": 0.5})
    section = compose._loss(read_run(tmp_path))
    assert section is not None and "each step: last" in section.charts[0].words
    assert "valid/loss: last 0.003333" in section.charts[0].words
    assert "accuracy" not in section.charts[0].words
    titles = [chart.title for chart in compose._evaluations(read_run(tmp_path)).charts]  # type: ignore[union-attr]
    assert titles == ["accuracy", "valid/accuracy"]


def test_what_check_found_is_marked_at_its_step(tmp_path: Path) -> None:
    found = {"code": "LOOP01", "severity": "error", "message": "no zero_grad", "step": 3}
    remark = found | {"severity": "info", "step": 9}
    Record(killed_and_resumed(tmp_path) / "record.jsonl").write("check", findings=[found, remark], steps=60)
    section = compose._loss(read_run(tmp_path))
    drawing = Elements(section.charts[0].drawing or "")  # type: ignore[union-attr]
    signs = [each for name, each in drawing.elements if each.get("class") == "sign"]
    assert [each["title"] for each in signs if "check" not in (each["title"] or "")][-1] == (
        "step 3: LOOP01 no zero_grad"
    )
    assert "found by check" in drawing.text


def test_sections_of_things_that_the_record_does_not_have_are_left_out(tmp_path: Path) -> None:
    page = _page(killed_and_resumed(tmp_path))
    titles = {
        attributes.get("id", "").partition("-")[0] for name, attributes in page.elements if name == "section"
    }  # type: ignore[union-attr]
    assert titles == {"loss", "optimisation", "evaluations", "speed", "lives", "facts"}


def test_what_check_and_verify_said_is_in_the_page(tmp_path: Path) -> None:
    record = Record(killed_and_resumed(tmp_path) / "record.jsonl")
    found = {"code": "LOOP01", "name": "stale-gradients", "severity": "error", "file": "a.py", "line": 3}
    found |= {"message": "no zero_grad", "evidence": {"steps": 4}, "fix": "Call it.", "cost": None}
    record.write(
        "check",
        script="a.py",
        findings=[found],
        not_observed=["PAR01"],
        not_seen=["a scheduler", "a GPU"],
        steps=60,
    )
    runs = [{"words": "again", "processes": 1, "num_steps": 9, "digest": "abcd", "parted_at": None}]
    record.write("verify", script="a.py", same=True, runs=runs, first_difference=None, steps=9, whole=True)
    said = _page(tmp_path).text
    for words in (
        "LOOP01 stale-gradients",
        "a.py:3",
        "steps: 4",
        "Call it.",
        "1 error in 60 steps",
        "abcd",
        "Not seen: a scheduler, a GPU.",
    ):
        assert words in said
    assert "same in all 9 steps; 1 error in 60 steps." in said


def test_a_check_of_a_script_that_failed_is_shown_as_not_checked(tmp_path: Path) -> None:
    record = Record(killed_and_resumed(tmp_path) / "record.jsonl")
    reason = "the script failed (exit code 1): NameError: name 'x' is not defined"
    record.write("check", script="a.py", findings=[], not_observed=["PAR01"], steps=0, inconclusive=reason)
    page = _page(tmp_path)
    (tile,) = (tile for tile in compose._tiles(read_run(tmp_path)) if tile.label == "Findings")
    assert (tile.value, tile.note, tile.tone) == ("not checked", reason, "warn")
    assert f"; not checked: {reason}." in page.text
    assert "Not seen" not in page.text and "did not apply" not in page.text  # an old record has no such field
    assert "nothing found" not in page.text


def test_a_run_of_which_a_part_was_verified_is_not_called_the_same_at_every_step(tmp_path: Path) -> None:
    record = Record(killed_and_resumed(tmp_path) / "record.jsonl")
    compared = {"steps": 60, "whole": False, "expected_steps": 480}
    record.write("verify", script="a.py", same=True, runs=[{}, {}], first_difference=None, **compared)
    said = _page(tmp_path).text
    assert said.count("the first 60 of about 480 steps") == 3, "in the headline, the tile and the section"
    assert "every step" not in said and "all 60" not in said


@pytest.mark.practice("P74")
def test_p74_the_loss_curve_has_kills_resumes_and_breaks_marked(tmp_path: Path) -> None:
    """A report draws the loss of a run over its steps, with kills, resumes and other breaks marked."""
    story = read_run(killed_and_resumed(tmp_path))
    chart = charts.curves("loss", [("a", story.loss)], marks=story.marks, is_smoothed=True)
    assert chart is not None
    drawing = Elements(chart.drawing or "")
    names = ["a", "resumed", "killed", "number of processes changed", "lineage break"]
    assert [name for name in names if name in drawing.text] == names
    marks = [each["d"] for _, each in drawing.elements if each.get("class") == "mark"]
    assert {int(float((path or "")[1:].split()[0])) for path in marks} == {400, 500}, "120 and 150 of 300"
    second = charts.curves("loss", [("none", Story(Path("a")).loss), ("b", story.loss)])
    assert second is not None and "var(--series-2)" in (second.drawing or "")


def test_a_long_value_is_cut_in_the_table_of_evaluations(tmp_path: Path) -> None:
    record = Record(tmp_path / "record.jsonl")
    record.write("evaluate", name="confusion", cursor=3, value=[[7] * 100] * 100)
    text = _page(tmp_path).text
    assert "[7, 7" in text and "7, …" in text and "7]" not in text


def test_memory_is_told_by_thousands_in_the_report_and_in_the_live_view(tmp_path: Path) -> None:
    assert (numerals.size(2**30), numerals.value_of("memory_bytes", 2**30)) == ("1.074 GB", "1.074 GB")
    record = Record(tmp_path / "record.jsonl")
    start(record, 0)
    record.write("values", name="memory_bytes", steps=[0], values=[2e6])
    chart = compose._memory(read_run(tmp_path))
    assert chart is not None and chart.words == "2 MB at every step."


def test_losses_that_are_all_nan_are_told_in_words(tmp_path: Path) -> None:
    record = Record(tmp_path / "record.jsonl")
    start(record, 0)
    steps(record, 0, [NAN] * 5)
    assert "None of the 5 recorded losses is a number." in _page(tmp_path).text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=60)
@given(kind=st.sampled_from(["check", "verify"]), fields=st.dictionaries(st.sampled_from(WORDS), JSON))
def test_no_answer_of_whatever_form_breaks_a_section(kind: str, fields: dict[str, Any]) -> None:
    made = Story(Path("a"))
    made.take({"kind": kind, "time_s": 1, **fields})
    told = [tell(made) for tell in (sections.findings, sections.verdict)]
    assert sum(section is not None for section in told) == 1


@pytest.mark.verdict("same in {steps}")
@pytest.mark.verdict("all runs are bit-for-bit identical in {}")
def test_a_folder_with_only_an_answer_is_a_report_too(tmp_path: Path) -> None:
    Record(tmp_path / "record.jsonl").write("verify", same=None, runs=[], reason="no step was seen")
    said = _page(tmp_path).text
    assert "inconclusive no step was seen" in said
    assert "same in" not in said and "identical" not in said


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be written .*Pass another file with --out"):
        write_report(killed_and_resumed(tmp_path), out=tmp_path / "no" / "where.html")


def test_no_script_may_run_and_nothing_is_fetched(tmp_path: Path) -> None:
    page = _page(killed_and_resumed(tmp_path))
    (policy,) = [each["content"] for name, each in page.elements if name == "meta" and "http-equiv" in each]
    assert policy is not None and policy.startswith("default-src 'none';") and "script" not in policy
    assert not [each for _, each in page.elements if "src" in each or (each.get("href") or "#")[0] != "#"]


@pytest.mark.parametrize("nasty", ALL)
def test_text_is_escaped_wherever_it_may_stand(nasty: str) -> None:
    for written in (text(nasty), tag("p", nasty, title=nasty)):
        inside = written.removeprefix("<p title=").removesuffix("</p>").replace('">', "", 1)
        assert "<" not in inside


def test_hostile_text_makes_no_element_and_no_handler(tmp_path: Path) -> None:
    page = _page(hostile_run(tmp_path, num_findings=300))
    assert "document.title='owned'" in page.text and "100 more are in the record." in page.text
    names = {name for name, _ in page.elements}
    assert not names & {"b", "extra", "iframe", "object", "img", "form", "link"}
    paths = [each for name, each in page.elements if name == "path"]
    assert all(re.fullmatch(r"[MLHVh\d. -]*", each["d"] or "") for each in paths)
    attributes = {key for _, each in page.elements for key in each}
    assert not [key for key in attributes if key.startswith("on") or key == "autofocus"]
    assert "script" not in names
