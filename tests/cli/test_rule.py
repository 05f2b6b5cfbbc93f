"""`truestep rule`: pages, lists, and what is unknown."""

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from truestep.cli import build_app
from truestep.errors import UsageError
from truestep.rules import find_rules

OWN = '''"""Every step is reported.

It is only an example.
"""

from truestep.rules import Meta

RULE = Meta(code="MINE01", severity="info", fix="Nothing.")


def check(evidence):
    return []
'''


def rule(*words: str) -> Result:
    return CliRunner().invoke(build_app(), ["rule", *words])


@pytest.mark.parametrize("name", ["LOOP01", "loop01", "stale-gradients"])
def test_a_rule_is_found_by_code_and_name(name: str) -> None:
    done = rule(name)
    assert done.exit_code == 0 and done.stdout.startswith("# LOOP01 stale-gradients\n")
    assert "## How to fix" in done.stdout and "ignore[stale-gradients]" in done.stdout


def test_the_page_of_every_rule_has_no_links_that_lead_nowhere() -> None:
    codes = [item.meta.code for item in find_rules()]
    answer = json.loads(rule("--format", "json", *codes).stdout)
    assert [item["code"] for item in answer["rules"]] == codes
    for item in answer["rules"]:
        assert ".md" not in item["page"] and "all rules" not in item["page"]


def test_all_rules_or_a_family_are_listed_with_a_line_each() -> None:
    assert len(rule().stdout.splitlines()) == len(find_rules())
    lines = rule("loop").stdout.splitlines()
    assert len(lines) > 10 and all(line.startswith("LOOP") for line in lines)
    (first, *_) = json.loads(rule("--format", "json").stdout)["rules"]
    assert "page" not in first and first["code"] == "CKPT01"


def test_an_unknown_rule_is_refused_with_one_that_is_close() -> None:
    done = rule("stale-gradient")
    assert isinstance(done.exception, UsageError)
    assert "'stale-gradient' is not a rule. Did you mean stale-gradients?" in str(done.exception)


def test_a_rule_from_a_folder_is_explained_even_without_sections(tmp_path: Path) -> None:
    (tmp_path / "every_step.py").write_text(OWN)
    done = rule("--rules", str(tmp_path), "MINE01")
    assert done.exit_code == 0 and "It is only an example." in done.stdout
