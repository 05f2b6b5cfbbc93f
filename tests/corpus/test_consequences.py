"""A finding is shown as a consequence of another only if it goes away with the other's repair."""

from pathlib import Path

import pytest

from tests.gathering import judged
from tests.patches import repaired
from truestep.rules import find_rules

BUGGY = Path(__file__).with_name("buggy")
RULES = {rule.meta.code: rule for rule in find_rules()}
SEEN = {
    ("DATA04", "DATA03"): "data04_grain_sorter",
    ("DATA07", "PROBE04"): "data07_camera_frames",
    ("DATA07", "PROBE06"): "data07_camera_frames",
    ("DATA07", "PROBE07"): "data07_camera_frames",
    ("LOOP10", "LOOP02"): "loop10_view_matcher",
    ("LOOP12", "LOOP05"): "loop12_molecule_policy",
    ("LOOP12", "PAR06"): "loop12_molecule_policy",
    ("LOSS04", "PROBE01"): "loss04_soft_routing",
    ("LOSS05", "PAR06"): "loss05_fraud_detector",
    ("PROBE04", "PROBE06"): "probe04_star_detector",
}
"""Causes and consequences, and a script of the corpus that shows both."""
IN_JOBS = {
    *(("DIST01", "DIST02"), ("DIST05", "DIST03")),
}
"""Those that jobs of several processes show, in `ranks/buggy`."""
BY_MECHANISM = {
    ("DATA07", "LOOP11"): "inputs that are not finite make such gradients",
    ("ENV06", "ENV04"): "a card without kernels cannot run the first operation",
    ("LOOP09", "PAR07"): "a learning rate of nearly nothing moves no weight",
}
"""Those that no script of the corpus shows, and why they hold."""


def test_every_consequence_is_shown_by_a_script_or_has_a_mechanism() -> None:
    known = {(cause, rule.meta.code) for rule in RULES.values() for cause in rule.meta.caused_by}
    assert known == SEEN.keys() | IN_JOBS | BY_MECHANISM.keys()
    assert len(known) == len(SEEN) + len(IN_JOBS) + len(BY_MECHANISM)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(SEEN.values())))
def test_a_consequence_goes_away_with_its_cause(name: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    codes = {edge for edge, seen_in in SEEN.items() if seen_in == name}
    path = BUGGY / f"{name}.py"
    for text, are_there in ((path.read_text(), True), (repaired(path), False)):
        script.write_text(text)
        findings = judged(script)[1].findings
        folded = {
            (item.rule.meta.code, other.rule.meta.code) for item in findings for other in item.consequences
        }
        everything = {item.rule.meta.code for item in findings} | {code for _, code in folded}
        assert codes <= folded if are_there else everything.isdisjoint({code for _, code in codes})
