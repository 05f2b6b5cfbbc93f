"""The report in a real browser."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.report.browser import Page, axe_core, browser, needs_browser
from tests.report.hostile import BOLD, LAST_WORDS, NUM_FINDINGS, SCRIPT, hostile_run
from tests.report.records import killed_and_resumed
from truestep.record import Record
from truestep.report.compose import write_report

pytestmark = [needs_browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


def _open(page: Page, path: Path, *, width: int = 1400, is_dark: bool = False) -> None:
    page.problems.clear()
    page.open(path.as_uri(), width=width, height=12_000, is_dark=is_dark)


@pytest.mark.parametrize("width", [1400, 420])
@pytest.mark.parametrize("is_dark", [False, True])
def test_charts_are_drawn_from_disk_without_an_error(
    page: Page, tmp_path: Path, width: int, is_dark: bool
) -> None:
    _open(page, write_report([killed_and_resumed(tmp_path)]), width=width, is_dark=is_dark)
    plots = "[...document.querySelectorAll('.plot')]"
    inside = (
        f"{plots}.every((plot) => plot.clientHeight > 200 && plot.querySelector('svg').clientWidth > 200)"
    )
    assert page.evaluate(f"{plots}.length") == 5 and page.evaluate(inside)
    assert page.evaluate("document.querySelectorAll('.sign').length") == 8
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.problems == []


def test_a_hostile_run_folder_runs_nothing_and_loses_nothing(page: Page, tmp_path: Path) -> None:
    path = write_report([hostile_run(tmp_path)])
    _open(page, path)
    page.wait("document.querySelector('.rest').dataset.ready")
    assert page.evaluate("document.title").startswith("<img src=x onerror")
    assert page.problems == []
    # What is shown is text, in the page and in the charts.
    shown = page.evaluate("document.body.textContent")
    assert SCRIPT in shown
    assert page.evaluate("document.querySelectorAll('main b, main a[href^=javascript]').length") == 0
    assert page.evaluate("document.querySelectorAll('main img, svg :not(path)').length") == 0
    names = page.evaluate("[...document.querySelectorAll('.chart')].map((each) => each.textContent).join()")
    assert BOLD in names
    # Nothing is lost: the last of many findings is found by its words.
    assert f"{NUM_FINDINGS:,}" in shown
    page.evaluate(
        "{ const field = document.querySelector('.rest input');"
        f"field.value = {json.dumps(LAST_WORDS)};"
        "field.dispatchEvent(new Event('input')); }"
    )
    page.wait("document.querySelectorAll('.rest article').length === 1")
    assert LAST_WORDS in page.evaluate("document.querySelector('.rest article').textContent")
    page.evaluate(
        "document.querySelectorAll('main *').forEach((each) => each.dispatchEvent(new Event('mouseover')))"
    )
    assert "owned" not in page.evaluate("document.title").replace("document.title='owned'", "")
    assert page.problems == []


def test_the_policy_stops_a_script_that_is_not_ours(page: Page, tmp_path: Path) -> None:
    path = write_report([killed_and_resumed(tmp_path)])
    path.write_text(path.read_text().replace("</main>", f"<p>{SCRIPT}</p></main>"))
    _open(page, path)
    assert page.evaluate("document.title") != "owned"
    assert any("Content Security Policy" in problem for problem in page.problems)


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    return axe_core(tmp_path_factory.mktemp("axe"))


@pytest.mark.parametrize(("width", "is_dark"), [(1400, False), (1400, True), (420, False)])
def test_axe_finds_nothing_to_mend(page: Page, tmp_path: Path, axe: str, width: int, is_dark: bool) -> None:
    record = Record(killed_and_resumed(tmp_path / "one") / "record.jsonl")
    found = {"code": "LOOP01", "name": "stale-gradients", "severity": "error", "message": "no zero_grad"}
    record.write("check", script="a.py", findings=[found, found | {"severity": "warning"}] * 30, steps=60)
    record.write(
        "verify", same=False, runs=[{"kind": "again", "digest": "abc"}], first_difference={"step": 3}
    )
    record.write("tune", trials=[{"knob": "threads", "tried": 2, "status": "kept", "ratio": {"median": 1.2}}])
    record.write("evaluate", name="confusion", cursor=300, value=[[3, 1], [0, 5]])
    record.write("unheard-of", value=1)
    other = killed_and_resumed(tmp_path / "two")
    for folders in ([tmp_path / "one"], [tmp_path / "one", other]):
        _open(page, write_report(folders), width=width, is_dark=is_dark)
        page.call("Runtime.evaluate", expression=axe)
        result = page.evaluate(
            "axe.run(document, {resultTypes: ['violations']}).then((found) => found.violations)"
        )
        told = [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in result]
        assert told == []
