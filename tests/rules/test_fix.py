"""`--fix`: what rules change in a script mends it, and nothing is changed unless asked."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gathering import run_script, run_text
from truestep.rules import Evidence, find_rules, judge, propose
from truestep.rules.edits import Edit, apply, diff
from truestep.rules.evidence import Source
from truestep.rules.rule import Rule

RULES = find_rules()
MENDING = [rule for rule in RULES if rule.mend is not None]
CORPUS = Path(__file__).parents[1] / "corpus" / "buggy"
COMMAND = str(Path(sys.executable).with_name("truestep"))


def mistakes(evidence: Evidence) -> list[str]:
    told = judge(RULES, evidence)
    assert told.failed == []
    return [item.rule.meta.code for item in told.findings if item.severity != "info"]


def test_what_can_be_mended_is_what_is_promised() -> None:
    codes = {rule.meta.code for rule in MENDING}
    assert codes >= {"LOOP01", "LOOP03", "LOOP08", "LOOP15", "MODE01", "MODE02", "LOSS01"}


@pytest.mark.parametrize("rule", MENDING, ids=lambda rule: rule.name)
def test_the_mended_example_is_right(rule: Rule) -> None:
    found = run_text(rule.buggy)
    changed = propose(judge(RULES, found.evidence).findings, found.evidence)
    ((_, text),) = changed.items()
    assert text != rule.buggy
    again = run_text(text)
    assert again.code == 0, again.output
    assert mistakes(again.evidence) == []


@pytest.mark.parametrize(
    "name",
    [
        "loop01_keyword_spotter",
        "loop01_item_ranker",
        "loop15_contrastive_views",
        "loss01_digit_mlp",
        "loop08_denoiser",
    ],
)
def test_scripts_are_mended(tmp_path: Path, name: str) -> None:
    path = tmp_path / "train.py"
    path.write_text((CORPUS / f"{name}.py").read_text())
    evidence = run_script(path).evidence
    changed = propose(judge(RULES, evidence).findings, evidence)
    path.write_text(changed[str(path)])
    again = run_script(path)
    assert again.code == 0, again.output
    assert mistakes(again.evidence) == []


def test_files_change_only_with_the_option(tmp_path: Path) -> None:
    (rule,) = [rule for rule in RULES if rule.meta.code == "LOOP01"]
    path = tmp_path / "train.py"
    path.write_text(rule.buggy)
    words: dict[str, Any] = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 180}
    done = subprocess.run([COMMAND, "check", "train.py"], check=False, **words)
    assert done.returncode == 1 and path.read_text() == rule.buggy
    assert "with --fix:" in done.stdout and "+    optimizer.zero_grad()" in done.stdout
    done = subprocess.run([COMMAND, "check", "--fix", "train.py"], check=False, **words)
    assert done.returncode == 0, done.stdout
    assert "truestep: changed train.py; checking again" in done.stderr
    assert "nothing found" in done.stdout
    assert path.read_text() == rule.buggy.replace("    loss.b", "    optimizer.zero_grad()\n    loss.b")


def test_edits_keep_the_rest_of_a_file() -> None:
    source = Source("train.py", "a\r\nb\r\nc\r\n")
    edits = [Edit(first=2, last=2, lines=("B",)), Edit(first=2, last=2, lines=("x",))]
    edits += [Edit(first=1, last=0, lines=("first",)), Edit(first=3, last=2, lines=("between",))]
    assert apply(source, edits) == "first\r\na\r\nB\r\nbetween\r\nc\r\n"


def test_lines_are_counted_as_python_counts_them() -> None:
    source = Source("train.py", '\x0cimport a\nb = "\x85\u2028"\r\nc\rd\n')
    assert source.lines == ["\x0cimport a", 'b = "\x85\u2028"', "c", "d"]
    changed = apply(source, [Edit(first=3, last=3, lines=("C",))])
    assert changed == '\x0cimport a\nb = "\x85\u2028"\r\nC\nd\n'
    assert [line for line in diff(source, changed, name="train.py") if line[0] in "+-"][2:] == ["-c", "+C"]


def test_a_script_of_windows_keeps_its_lines_ends(tmp_path: Path) -> None:
    (rule,) = [rule for rule in RULES if rule.meta.code == "LOOP01"]
    text = ("\x0c" + rule.buggy).replace("\n", "\r\n")
    path = tmp_path / "train.py"
    path.write_bytes(text.encode())
    words: dict[str, Any] = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 180}
    done = subprocess.run([COMMAND, "check", "--fix", "train.py"], check=False, **words)
    assert done.returncode == 0, done.stdout + done.stderr
    wanted = text.replace("    loss.b", "    optimizer.zero_grad()\r\n    loss.b")
    assert path.read_bytes() == wanted.encode()


def test_mending_finds_imports_in_a_script_of_windows() -> None:
    (rule,) = [rule for rule in RULES if rule.meta.code == "MODE02"]
    found = run_text(rule.buggy).evidence
    told = judge(RULES, found).findings
    (file,) = propose(told, found)
    again = Evidence(processes=found.processes, texts={file: rule.buggy.replace("\n", "\r\n")})
    assert propose(told, again)[file].count("\r\n") > rule.buggy.count("\n")
