"""Scripts with one mistake each, in a long form: what is found in a few steps is found in many."""

from pathlib import Path

import pytest

from tests.gathering import expected, judged, run_script
from tests.long_forms import lengthened
from truestep.watch import Plan

BUGGY = sorted(Path(__file__).with_name("buggy").glob("*.py"))
MANY_STEPS = 600
FEWER_STEPS = {
    "loop10_view_matcher": "it makes no step of its optimizer",
    "loop13_series_by_hand": "it changes its weights by hand, without an optimizer",
    "par12_early_stopping": "it stops early",
}
"""Scripts whose long form makes less than half as many steps of an optimizer, and why."""


@pytest.mark.slow
@pytest.mark.parametrize("path", BUGGY, ids=lambda path: path.stem)
def test_the_mistake_is_found_in_a_long_run(path: Path, tmp_path: Path) -> None:
    num_steps = run_script(path, plan=Plan()).evidence.first.num_steps
    text = lengthened(path.read_text(), times=max(2, -(-MANY_STEPS // max(num_steps, 20))))
    assert text is not None
    script = tmp_path / path.name
    script.write_text(text)
    found, told = judged(script, timeout_s=300.0)
    assert told.failed == [] and found.evidence.first.troubles == []
    ((code, lines),) = expected(path.read_text()).items()
    everything = [*told.findings, *(item for one in told.findings for item in one.consequences)]
    hits = [item for item in everything if item.rule.meta.code == code and item.finding.line in lines]
    assert hits, [(item.rule.meta.code, item.finding.line) for item in everything]
    assert (found.evidence.first.num_steps < MANY_STEPS / 2) == (path.stem in FEWER_STEPS)
