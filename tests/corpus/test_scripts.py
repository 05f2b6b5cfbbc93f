"""Scripts with one mistake each, their repaired twins, right ones that look wrong: all rules on all."""

from pathlib import Path

import pytest

from tests.gathering import expected, judged
from tests.patches import apply, patch_of, repaired, write_repaired
from truestep.check.early import FIRST_STEPS, cut, find_lasting, key_of
from truestep.check.evaluate import flatten
from truestep.rules import Evidence, find_rules

HERE = Path(__file__).parent
BUGGY, CLEAN = (sorted((HERE / name).glob("*.py")) for name in ("buggy", "clean"))
STEPS = 40
"""How many steps are made in the fast tier; `--all` makes them all too."""
LATE = {
    "ckpt01_transfer_encoder",
    "ckpt02_resumable_run",
    "loop03_knowledge_distiller",
    "loop09_news_classifier",
    "loop10_energy_forecaster",
    "par10_graph_regressor",
    "par12_churn_model",
}
"""Scripts whose mistake comes later."""
MISSED: dict[str, str] = {}
"""Scripts whose mistake is not found, and why."""


STEMS = sorted((path.stem for path in BUGGY), key=lambda stem: stem in LATE, reverse=True)
FIRST = {stem.partition("_")[0]: stem for stem in STEMS}
"""A script for each rule, for the fast tier."""


def each(paths: list[Path]) -> pytest.MarkDecorator:
    """Give a test these scripts: in the fast tier one for each rule, and all that have none."""
    others = set(STEMS) - set(FIRST.values())
    marks = {path: [pytest.mark.slow] if path.stem in others else [] for path in paths}
    return pytest.mark.parametrize(
        "path", [pytest.param(path, marks=marks[path], id=path.stem) for path in paths]
    )


ends = pytest.mark.parametrize("steps", [STEPS, pytest.param(None, marks=pytest.mark.slow)], ids=["", "all"])


def mistakes(path: Path, steps: int | None) -> list[tuple[str, int | None, str]]:
    """Return what is found that is worse than a remark."""
    found, told = judged(path, steps=steps)
    assert_early_findings_last(found.evidence)
    assert found.code == 0, found.output
    assert found.evidence.first.troubles == []
    assert told.failed == []
    return [
        (item.rule.meta.code, item.finding.line, item.finding.message)
        for item in told.findings
        if item.severity != "info"
    ]


LASTING = [rule for rule in find_rules() if rule.meta.is_lasting]


def assert_early_findings_last(evidence: Evidence) -> None:
    """What is reported after some steps is among what is found in all of them, before a replay."""
    whole = cut(evidence, evidence.first.num_steps)
    in_the_end = {key_of(item) for item in flatten(find_lasting(LASTING, whole))}
    for num_steps in (FIRST_STEPS, 3 * FIRST_STEPS):
        early = {key_of(item) for item in flatten(find_lasting(LASTING, cut(evidence, num_steps)))}
        assert early <= in_the_end, num_steps


def test_the_corpus_is_large_enough() -> None:
    assert len(BUGGY) >= 60 and len(CLEAN) >= 24
    assert len(MISSED) <= len(BUGGY) * 0.05
    assert not [path for path in CLEAN if expected(path.read_text())]


def test_every_buggy_script_has_a_patch_that_applies_and_removes_the_mistake() -> None:
    assert {patch_of(path) for path in BUGGY} == {*(HERE / "patches").iterdir()}
    for path in BUGGY:
        text = repaired(path)
        assert text != path.read_text() and not expected(text), path.name
        compile(text, path.name, "exec")


def test_a_patch_of_another_script_is_refused() -> None:
    patch = "--- a/x.py\n+++ b/x.py\n@@ -2 +2 @@\n one\n-two\n+2\n"
    assert apply("zero\none\ntwo\nthree\n", patch) == "zero\none\n2\nthree\n"
    for other in ("zero\none\n2\n", "zero\none\n", ""):
        with pytest.raises(ValueError, match="the patch expects"):
            apply(other, patch)


@ends
@each(BUGGY)
def test_the_mistake_is_found_at_its_line(
    path: Path, steps: int | None, request: pytest.FixtureRequest
) -> None:
    if path.stem in MISSED:
        request.applymarker(pytest.mark.xfail(reason=MISSED[path.stem]))
    ((code, lines),) = expected(path.read_text()).items()
    found, told = judged(path, steps=None if path.stem in LATE else steps)
    assert told.failed == [] and found.evidence.first.troubles == []
    assert_early_findings_last(found.evidence)
    everything = [*told.findings, *(item for one in told.findings for item in one.consequences)]
    hits = [item for item in everything if item.rule.meta.code == code and item.finding.line in lines]
    assert hits, [(item.rule.meta.code, item.finding.line) for item in everything]
    others = {item.rule.meta.code for item in told.findings if item.severity != "info"} - {code}
    assert others == set()


@ends
@each(BUGGY)
def test_a_repaired_twin_is_not_accused(path: Path, steps: int | None) -> None:
    assert mistakes(write_repaired(path), steps) == []


@ends
@each(CLEAN)
def test_a_right_script_that_looks_wrong_is_not_accused(path: Path, steps: int | None) -> None:
    assert mistakes(path, steps) == []
