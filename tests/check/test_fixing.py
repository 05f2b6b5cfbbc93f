"""`--fix`: what rules change in a script mends it, and nothing is changed unless asked."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gathering import run_script, run_text
from tests.rule_examples import buggy
from truestep.check import Evaluation, Result, RuleFinding, apply_fixes, evaluate_rules, propose
from truestep.errors import UsageError
from truestep.rules import Evidence, Finding, Meta, find_rules
from truestep.rules.evidence import Source
from truestep.rules.kit.edits import Edit, apply, diff
from truestep.rules.rule import Rule
from truestep.watch import Process, Script

RULES = find_rules()
MENDING = [rule for rule in RULES if rule.make_edits is not None]
CORPUS = Path(__file__).parents[1] / "corpus" / "buggy"
COMMAND = str(Path(sys.executable).with_name("truestep"))


def mistakes(evidence: Evidence) -> list[str]:
    told = evaluate_rules(RULES, evidence)
    assert told.failed == []
    return [item.rule.meta.code for item in told.findings if item.severity != "info"]


def test_what_can_be_mended_is_what_is_promised() -> None:
    codes = {rule.meta.code for rule in MENDING}
    assert codes >= {"LOOP01", "LOOP03", "LOOP08", "LOOP15", "MODE01", "MODE02", "LOSS01"}


@pytest.mark.parametrize("rule", MENDING, ids=lambda rule: rule.name)
def test_the_mended_example_is_right(rule: Rule) -> None:
    script = buggy(rule.meta.code)
    found = run_text(script)
    changed = propose(evaluate_rules(RULES, found.evidence).findings, found.evidence)
    ((_, text),) = changed.items()
    assert text != script
    again = run_text(text)
    assert again.code == 0, again.output
    assert mistakes(again.evidence) == []


@pytest.mark.parametrize(
    "name",
    [
        "loop01_keyword_spotter",
        "loop15_contrastive_views",
        "loss01_digit_mlp",
        "loop08_denoiser",
    ],
)
def test_scripts_are_mended(tmp_path: Path, name: str) -> None:
    path = tmp_path / "train.py"
    path.write_text((CORPUS / f"{name}.py").read_text())
    evidence = run_script(path).evidence
    changed = propose(evaluate_rules(RULES, evidence).findings, evidence)
    path.write_text(changed[str(path)])
    again = run_script(path)
    assert again.code == 0, again.output
    assert mistakes(again.evidence) == []


def test_files_change_only_with_the_option(tmp_path: Path) -> None:
    script = buggy("LOOP01")
    path = tmp_path / "train.py"
    path.write_text(script)
    words: dict[str, Any] = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 180}
    done = subprocess.run([COMMAND, "check", "train.py"], check=False, **words)
    assert done.returncode == 1 and path.read_text() == script
    assert "with --fix:" in done.stdout and "+    optimizer.zero_grad()" in done.stdout
    done = subprocess.run([COMMAND, "check", "--fix", "train.py"], check=False, **words)
    assert done.returncode == 0, done.stdout
    assert "truestep: testing the edits for LOOP01 at train.py:10: running the script again" in done.stderr
    assert "truestep: fixed 1 · withdrew 0 · 0 left" in done.stderr
    assert "nothing found" in done.stdout
    assert path.read_text() == script.replace("    loss.b", "    optimizer.zero_grad()\n    loss.b")


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
    script = buggy("LOOP01")
    text = ("\x0c" + script).replace("\n", "\r\n")
    path = tmp_path / "train.py"
    path.write_bytes(text.encode())
    words: dict[str, Any] = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 180}
    done = subprocess.run([COMMAND, "check", "--fix", "train.py"], check=False, **words)
    assert done.returncode == 0, done.stdout + done.stderr
    wanted = text.replace("    loss.b", "    optimizer.zero_grad()\r\n    loss.b")
    assert path.read_bytes() == wanted.encode()


def test_mending_finds_imports_in_a_script_of_windows() -> None:
    script = buggy("MODE02")
    found = run_text(script).evidence
    told = evaluate_rules(RULES, found).findings
    (file,) = propose(told, found)
    again = Evidence(processes=found.processes, texts={file: script.replace("\n", "\r\n")})
    assert propose(told, again)[file].count("\r\n") > script.count("\n")


def test_an_edit_after_a_last_line_without_a_newline_is_applied() -> None:
    text = """\
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    for _ in range(2):
        x = torch.randn(8, 4)
        ((model(x) - x.sum(1, keepdim=True)).square().mean() / 2).backward()
    optimizer.step()"""
    found = run_text(text)
    ((_, changed),) = propose(evaluate_rules(RULES, found.evidence).findings, found.evidence).items()
    assert changed == text + "\n    optimizer.zero_grad()"
    assert apply(Source("train.py", "a\r\nb"), [Edit(first=2, last=2, lines=("B", "c"))]) == "a\r\nB\r\nc"


KEPT = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
losses = []
for step in range(10):
    x = torch.randn(8, 4)
    optimizer.zero_grad()
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss)
"""


def test_kept_losses_stay_tensors_for_who_reads_them_later(tmp_path: Path) -> None:
    text = KEPT + "print(sum(item.item() for item in losses), torch.stack(losses).mean())\n"
    done, after = fix(tmp_path, text)
    assert done.returncode == 0, done.stdout + done.stderr
    assert after == text.replace("append(loss)", "append(loss.detach())")


@pytest.mark.verdict("truestep: nothing was fixed, because {}")
def test_an_edit_that_breaks_the_script_is_withdrawn_and_the_others_stay(tmp_path: Path) -> None:
    text = (
        KEPT.replace("    optimizer.zero_grad()\n", "") + "assert losses[0].grad_fn is not None, 'no graph'\n"
    )
    done, after = fix(tmp_path, text)
    assert after == text.replace("    loss.b", "    optimizer.zero_grad()\n    loss.b")
    wanted = (
        "truestep: withdrew the edit for LOOP15 at train.py:13. With it, the script failed (exit code 1): "
    )
    assert wanted + "AssertionError: no graph" in done.stderr
    assert "fixed 1 · withdrew 1" in done.stderr and "nothing was fixed" not in done.stderr
    assert done.returncode == 1 and "LOOP15" in done.stdout and "LOOP01" not in done.stdout


@pytest.mark.parametrize(
    "use", ["torch.stack(losses).sum().backward()", "total = sum(losses)\ntorch.autograd.grad(total, [x])"]
)
def test_losses_of_which_a_gradient_is_taken_later_are_not_detached(use: str) -> None:
    (rule,) = [rule for rule in RULES if rule.meta.code == "LOOP15"]
    assert rule.make_edits is not None
    finding = Finding(message="", file="train.py", line=14)
    assert rule.make_edits(Source("train.py", KEPT), finding) != []
    assert rule.make_edits(Source("train.py", KEPT + use + "\n"), finding) == []


@pytest.mark.verdict("fixed {} · withdrew {} · {} left")
def test_a_script_that_fails_before_the_fix_is_not_edited(tmp_path: Path) -> None:
    text = KEPT + "raise ValueError('no data')\n"
    done, after = fix(tmp_path, text)
    assert after == text and done.returncode == 2
    assert "nothing was fixed, because an edit could not be tested: the script failed" in done.stderr
    assert "fixed 0" not in done.stderr


def fix(folder: Path, text: str) -> tuple[subprocess.CompletedProcess[str], str]:
    path = folder / "train.py"
    path.write_text(text)
    words = [COMMAND, "check", "--fix", "train.py"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=180)
    return done, path.read_text()


def _rule(code: str) -> Rule:
    def make_edits(source: Source, finding: Finding) -> list[Edit]:
        line = finding.line or 0
        return [Edit(first=line, last=line, lines=(source.line(line).upper(),))]

    meta = Meta(code=code, severity="error", fix="")
    return Rule(name=code.lower(), meta=meta, check=lambda _: (), document="", make_edits=make_edits)


def _result(path: Path, **lines: int) -> Result:
    told = [
        RuleFinding(rule=_rule(code), finding=Finding(message="m", file=str(path), line=line))
        for code, line in lines.items()
    ]
    evidence = Evidence(processes=[Process(pid=1, argv=[], num_steps=3)])
    evaluation = Evaluation(findings=told)
    return Result(code=0, evidence=evidence, rules=[], evaluation=evaluation, script=Script(path=str(path)))


def test_an_edit_that_brings_a_new_finding_is_withdrawn(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("a\nb\n")
    seen = []

    def examine() -> Result:
        seen.append(path.read_text())
        return _result(path, C01=1) if "B" in seen[-1] else _result(path, B01=2)

    fixed = apply_fixes(_result(path, A01=1, B01=2), examine)
    assert seen == ["A\nB\n", "A\nb\n", "A\nB\n"] and path.read_text() == "A\nb\n"
    ((told, reason),) = fixed.withdrawn
    assert told.rule.meta.code == "B01" and reason == "a new finding appears: C01 c01 at line 1, m"
    assert [item.rule.meta.code for item in fixed.kept] == ["A01"]
    assert [item.rule.meta.code for item in fixed.result.findings] == ["B01"]


def test_files_are_restored_when_the_second_run_is_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(b"a\r\nb")

    def interrupted() -> Result:
        assert path.read_bytes() == b"A\r\nb"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        apply_fixes(_result(path, A01=1), interrupted)
    assert path.read_bytes() == b"a\r\nb"


def test_a_file_that_its_user_edits_meanwhile_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("a\n")

    def edited() -> Result:
        path.write_text("mine\n")
        return _result(path, C01=1)

    with pytest.raises(UsageError, match="changed while the script ran, so --fix did not edit it"):
        apply_fixes(_result(path, A01=1), edited)
    assert path.read_text() == "mine\n"


def _local_rule(code: str, text: str) -> Rule:
    """Return a rule whose edit puts a call before a line."""

    def make_edits(_source: Source, finding: Finding) -> list[Edit]:
        line = finding.line or 0
        return [Edit(first=line, last=line - 1, lines=(text,))]

    meta = Meta(code=code, severity="error", fix="")
    return Rule(name=code.lower(), meta=meta, check=lambda _: (), document="", make_edits=make_edits)


def _answer(path: Path, *findings: tuple[Rule, int, str]) -> Result:
    told = [
        RuleFinding(rule=rule, finding=Finding(message="m", file=str(path), line=line, evidence=evidence))
        for rule, line, evidence in findings
    ]
    evidence = Evidence(processes=[Process(pid=1, argv=[], num_steps=3)])
    evaluation = Evaluation(findings=told)
    return Result(code=0, evidence=evidence, rules=[], evaluation=evaluation, script=Script(path=str(path)))


OTHER = _local_rule("C01", "print(1)")


@pytest.mark.parametrize(
    ("text", "line", "evidence", "is_kept"),
    [
        ("print(0)", 5, "seen at line 4", True),
        ("print(0)", 3, "", False),
        ("print(0)", 5, "since the call at line 3", False),
        ("a.eval()", 5, "", False),
    ],
)
def test_an_edit_stays_if_what_is_new_was_only_made_observable(
    tmp_path: Path, text: str, line: int, evidence: str, is_kept: bool
) -> None:
    """A local edit does harm through the lines that it writes. What others do is not known."""
    path = tmp_path / "train.py"
    path.write_text("a = 1\nb = 2\nc = 3\nd = 4\n")
    rule = _local_rule("A01", text)
    after = _answer(path, (OTHER, line, evidence))
    fixed = apply_fixes(_answer(path, (rule, 3, "")), lambda: after)
    assert [item.rule.meta.code for item in fixed.kept] == ["A01"] * is_kept
    assert (text in path.read_text()) is is_kept
    if not is_kept:
        ((_, reason),) = fixed.withdrawn
        assert reason == f"a new finding appears: C01 c01 at line {line}, m"


def test_an_edit_that_does_not_fix_its_finding_is_withdrawn(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("a = 1\nb = 2\n")
    rule = _local_rule("A01", "print(0)")
    after = _answer(path, (rule, 3, ""))
    fixed = apply_fixes(_answer(path, (rule, 2, "")), lambda: after)
    assert path.read_text() == "a = 1\nb = 2\n" and fixed.kept == []
    ((_, reason),) = fixed.withdrawn
    assert reason == "it is still reported"
