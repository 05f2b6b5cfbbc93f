"""Findings while the script runs: which, when, and once."""

import json
import subprocess
import time
from pathlib import Path

import pytest

from tests.check.test_check import COMMAND, SCRIPT, write
from tests.gathering import run_text
from truestep.check import RuleFinding
from truestep.check import early as early_module
from truestep.check.early import FIRST_STEPS, EarlyFindings, cut, find_lasting, key_of
from truestep.rules import Evidence, find_rules
from truestep.watch.evidence.facts.optimizing import OptimizerStep

LINE = 13
WAITING = SCRIPT.replace("import sys\n", "import os, sys, time\n").replace("range(6)", "range(600)")
WAITING = WAITING.replace(
    "    optimizer.step()\n",
    "    optimizer.step()\n    time.sleep(0.05)\n    if os.path.exists('found'):\n        break\n",
)


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return run_text(SCRIPT).evidence


def test_evidence_is_cut_at_the_end_of_a_step(evidence: Evidence) -> None:
    part = cut(evidence, 4)
    assert (evidence.first.num_steps, part.first.num_steps) == (6, 4)
    assert len(part.of(OptimizerStep)) == 4 and part.first.ended is None
    assert part.first.moments[-1].step <= 4
    assert cut(evidence, 99).first.num_steps == 6


def test_only_lasting_rules_are_evaluated_early(evidence: Evidence) -> None:
    found = find_lasting(find_rules(), cut(evidence, 4))
    assert [key_of(item)[0::2] for item in found] == [("LOOP01", LINE)]


def test_a_lasting_rule_says_nothing_about_the_end_of_the_script() -> None:
    lasting = [rule.meta.code for rule in find_rules() if rule.meta.is_lasting]
    assert {"LOOP01", "LOOP11", "LOSS03"} <= set(lasting)
    # What is never done may still be done: these can be taken back.
    assert not {"PAR06", "PAR07", "LOOP10", "REPRO01"} & set(lasting)


def early(folder: Path, found: list[RuleFinding], *, hidden: bool = False) -> EarlyFindings:
    return EarlyFindings(
        find_rules(),
        leave_out=lambda items, _: [] if hidden else items,
        on_finding=lambda item, _: found.append(item),
    ).beside(folder)


def test_a_finding_is_reported_once_and_not_if_it_is_suppressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evidence: Evidence
) -> None:
    monkeypatch.setattr(early_module.Evidence, "read", lambda _: evidence)
    found: list[RuleFinding] = []
    looking = early(tmp_path, found)
    looking._look()
    looking._look()
    assert [item.rule.meta.code for item in found] == ["LOOP01"]
    suppressed: list[RuleFinding] = []
    early(tmp_path, suppressed, hidden=True)._look()
    assert suppressed == []


def test_evidence_that_is_half_written_is_read_later(tmp_path: Path) -> None:
    (tmp_path / "process-1-0.jsonl").write_text('{"kind":"start"}\n{"kind":"moments","steps":9}\n')
    found: list[RuleFinding] = []
    with early(tmp_path, found) as looking:
        looking._look()
        time.sleep(0.4)
    assert found == [] and FIRST_STEPS < 9


def check_until_found(folder: Path, *words: str) -> tuple[str, str]:
    """Check a script that ends only once its finding was read; return what came before that, and after."""
    write(folder, WAITING)
    with subprocess.Popen(
        [COMMAND, "check", *words, "train.py"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if not words else subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        before = ""
        while "LOOP01" not in before and (line := process.stdout.readline()):
            before += line
        (folder / "found").touch()
        after = process.stdout.read()
    assert process.returncode == 1
    return before, after


def test_jsonl_is_a_line_for_each_finding_as_it_happens_and_a_summary(tmp_path: Path) -> None:
    before, after = check_until_found(tmp_path, "--format", "jsonl")
    first, *others = map(json.loads, (before + after).splitlines())
    assert (first["kind"], first["code"], first["line"]) == ("finding", "LOOP01", LINE)
    assert all(line["code"] != "LOOP01" for line in others[:-1])
    assert (others[-1]["kind"], others[-1]["findings"][0]["code"]) == ("summary", "LOOP01")


@pytest.mark.slow
def test_text_lists_what_was_reported_above(tmp_path: Path) -> None:
    before, after = check_until_found(tmp_path)
    assert before.endswith("error  LOOP01 stale-gradients\n") and "ends" not in before
    found, _, rest = after.partition("ends\n")
    assert f"  train.py:{LINE}\n    loss.backward()\n" in found
    assert (
        f"reported above, while the script ran:\n  error  LOOP01 stale-gradients  train.py:{LINE}, " in rest
    )
    assert rest.count("LOOP01") == 1 and "1 error in " in rest
