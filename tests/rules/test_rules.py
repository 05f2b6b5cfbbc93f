"""Every rule is held to its own file: documentation, metadata, an example of each kind."""

import functools
from pathlib import Path

import pytest

from tests.gathering import Gathered, expected, run_text
from tests.rule_examples import HOME as EXAMPLES
from tests.rule_examples import Scripts, recorded, scripts_of
from truestep.check import evaluate_rules
from truestep.rules import find_rules
from truestep.rules.rule import SECTIONS, Rule

RULES = find_rules()
HOME = Path(__file__).parents[2] / "src" / "truestep" / "rules"
SCRIPTS = [pytest.param(rule, found, id=rule.name) for rule in RULES if (found := scripts_of(rule.meta.code))]
RECORDED = [rule for rule in RULES if not scripts_of(rule.meta.code)]


@functools.cache
def gathered(text: str) -> Gathered:
    return run_text(text)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_is_documented_in_its_file(rule: Rule) -> None:
    title, _, rest = rule.document.partition("\n")
    family = HOME / rule.meta.code.rstrip("0123456789").lower()
    assert any(title in path.read_text() for path in family.glob("*.py"))
    assert title.endswith(".") and len(title) <= 100
    headings = [line.removeprefix("## ") for line in rest.splitlines() if line.startswith("## ")]
    assert tuple(headings) == SECTIONS
    assert rule.meta.fix.endswith((".", ")")) and len(rule.meta.fix) <= 250


def test_codes_and_names_are_unique() -> None:
    assert len({rule.meta.code for rule in RULES}) == len({rule.name for rule in RULES}) == len(RULES)


def test_every_example_is_of_a_rule() -> None:
    codes = {rule.meta.code.lower() for rule in RULES}
    assert {path.name for path in (EXAMPLES / "examples").iterdir()} <= codes


@pytest.mark.parametrize(("rule", "scripts"), SCRIPTS)
def test_a_rule_finds_its_own_example(rule: Rule, scripts: Scripts) -> None:
    found = gathered(scripts.buggy)
    assert found.code == 0 or found.evidence.first.error, found.output
    assert found.evidence.first.troubles == []
    told = evaluate_rules(RULES, found.evidence)
    assert told.failed == []
    lines = expected(scripts.buggy)[rule.meta.code]
    everything = [*told.findings, *(item for one in told.findings for item in one.consequences)]
    assert {item.finding.line for item in everything if item.rule == rule} == lines
    assert all(item.finding.step is None or item.finding.step >= 0 for item in everything)


CORRECT = [
    pytest.param(rule, text, id=f"{rule.name}-{kind}")
    for rule in RULES
    if (found := scripts_of(rule.meta.code))
    for kind, text in (("clean", found.clean), ("fixed", found.fixed))
    if text
]


@pytest.mark.parametrize(("rule", "text"), CORRECT)
def test_all_rules_are_silent_on_a_clean_example(rule: Rule, text: str) -> None:
    found = gathered(text)
    assert found.code == 0, found.output
    assert found.evidence.first.troubles == []
    told = evaluate_rules(RULES, found.evidence)
    assert told.failed == []
    assert [(item.rule.name, item.finding) for item in told.findings if item.severity != "info"] == []
    everything = [*told.findings, *(item for one in told.findings for item in one.consequences)]
    assert rule.name not in {item.rule.name for item in everything}


@pytest.mark.parametrize("rule", RECORDED, ids=lambda rule: rule.name)
def test_a_rule_tells_recorded_evidence_apart(rule: Rule) -> None:
    buggy, clean = recorded(rule.meta.code)
    assert list(rule.check(buggy)) and not list(rule.check(clean))


def test_nothing_that_happened_is_not_observed() -> None:
    """A rule that had nothing to look at says so; it does not pass."""
    told = evaluate_rules(RULES, run_text("import torch\nprint(torch.ones(2))\n").evidence)
    assert told.findings == [] and told.failed == []
    named = {rule.name for rule in told.not_observed}
    assert {rule.name for rule in RULES if rule.meta.needs} <= named
