"""The answer of check in the forms that code hosts and patch tools read, and where it goes."""

import json
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.check.test_check import LINE, MENDED, SCRIPT, check, write
from truestep.check import Evaluation, RuleFinding, as_annotations, as_sarif
from truestep.check.examine import Result
from truestep.check.gather import _wait
from truestep.cli._answer import Answer, Format, show_faults
from truestep.cli._page import Page
from truestep.cli.check import _exit_code
from truestep.errors import UsageError
from truestep.hang.patrol import Patrol
from truestep.rules import Evidence, Finding, Source, find_rules
from truestep.rules.kit.edits import patch
from truestep.watch import Script

RULES = {rule.meta.code: rule for rule in find_rules()}


def found(code: str, *, follows: tuple[RuleFinding, ...] = (), **fields: Any) -> RuleFinding:
    finding = Finding(**{"message": "it is wrong", "file": "/repo/sub/train.py", "line": 3, **fields})
    return RuleFinding(rule=RULES[code], finding=finding, consequences=follows)


def result_of(*findings: RuleFinding, code: int = 0, timed_out_s: float | None = None) -> Result:
    evaluation = Evaluation(findings=list(findings))
    return Result(
        code=code,
        evidence=Evidence(),
        rules=list(RULES.values()),
        evaluation=evaluation,
        timed_out_s=timed_out_s,
    )


def concluded(
    *findings: RuleFinding, evidence: Evidence | None = None, inconclusive: str | None = None
) -> Any:
    """Return what forms read of a result: whether it was inconclusive is given, not found out."""
    given = {"findings": list(findings), "evidence": evidence or Evidence(), "inconclusive": inconclusive}
    return SimpleNamespace(rules=list(RULES.values()), **given)


def test_an_annotation_is_one_line_whatever_is_in_it() -> None:
    odd = found("LOOP01", file="/repo/a,b:c%.py", message="50% of it\nis ::error::", evidence="x\r\ny")
    (line,) = as_annotations(concluded(odd))
    head, _, text = line.removeprefix("::").partition("::")
    assert head == "error file=/repo/a%2Cb%3Ac%25.py,line=3,title=LOOP01 stale-gradients"
    assert text.startswith("50%25 of it%0Ais ::error::%0ASeen: x%0D%0Ay%0AFix: Call optimizer.zero_grad()")


def test_annotations_have_the_level_of_the_finding_and_its_consequences_in_the_text() -> None:
    follows = (found("LOOP10", message="the loss is not finite"),)
    findings = [found("LOOP01", follows=follows), found("PROBE07", file=None, line=None)]
    first, remark = as_annotations(concluded(*findings))
    assert first.endswith("%0ASo: LOOP10 the loss is not finite")
    assert remark.startswith("::notice title=PROBE07 update-scale::")


def test_every_form_for_code_hosts_shows_that_a_run_was_inconclusive() -> None:
    reason = "No optimizer step ran"
    result = concluded(inconclusive=reason)
    (line,) = as_annotations(result)
    assert line == f"::error title=truestep check%3A inconclusive::{reason}"
    (run,) = as_sarif(result)["runs"]
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    assert reason in invocation["toolExecutionNotifications"][0]["message"]["text"]


@pytest.mark.parametrize("text", ["a\nb\nc\n", "a\nb\nc", "a\r\nb\r\nc\r\n", "a\nb\x0c\nc\n"])
def test_a_patch_is_taken_by_git(tmp_path: Path, text: str) -> None:
    end = "\r\n" if "\r\n" in text else "\n"
    changed = text.replace("c", f"new{end}c")
    (tmp_path / "train.py").write_bytes(text.encode())
    diff = patch(Source("train.py", text), changed, name="train.py")
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=diff.encode(), check=True, timeout=30)
    assert (tmp_path / "train.py").read_bytes() == changed.encode()


def test_a_script_whose_time_was_up_is_inconclusive_whatever_its_exit_code() -> None:
    for code in (0, 1, 130, -9):
        result = result_of(code=code, timed_out_s=60)
        assert result.inconclusive is not None and "after 60 s (--timeout)" in result.inconclusive
        assert _exit_code(result, found=1) == 2
        assert _exit_code(result_of(found("LOOP01"), code=code, timed_out_s=60), found=1) == 1


def test_exit_zero_is_for_findings_alone() -> None:
    assert _exit_code(result_of(found("LOOP01")), found=0) == 0
    assert _exit_code(result_of(code=1), found=0) == 2


def test_each_form_of_an_answer_ends_with_a_newline_or_is_empty() -> None:
    answer = Answer(script=Script(path="train.py"), result=result_of(found("LOOP01")), patch="")
    texts = {name: answer.render(name) for name in Format}
    assert [name for name, text in texts.items() if text and not text.endswith("\n")] == []
    assert texts[Format.diff] == "" and json.loads(texts[Format.json])["diff"] == ""


def test_a_path_that_is_not_utf_8_does_not_cost_the_answer() -> None:
    odd = result_of(found("DATA04", file="/repo/\udcff.py"))
    answer = Answer(script=Script(path="\udcff.py"), result=odd, patch="--- a/\udcff.py\n")
    for name in Format:
        assert answer.render(name).encode()


def test_a_file_gets_the_form_and_the_terminal_gets_the_text(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    folder = tmp_path / "sub"
    folder.mkdir()
    write(folder)
    done = check(folder, "--format", "sarif", "--output", "found.json", "--exit-zero", "-v", "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("begins\nends\n") and f"train.py:{LINE}" in done.stdout
    assert "did not apply: LOOP05" in done.stdout
    (result, *_) = json.loads((folder / "found.json").read_text())["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"] == {"uri": "sub/train.py"}


def test_quiet_discards_what_the_script_prints(tmp_path: Path) -> None:
    write(tmp_path)
    done = check(tmp_path, "-q", "--format", "diff", "train.py")
    assert (done.returncode, done.stderr) == (1, "")
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=done.stdout, text=True, check=True, timeout=30)
    assert (tmp_path / "train.py").read_text() == SCRIPT.replace(
        "    loss.backward()", "    optimizer.zero_grad()\n    loss.backward()"
    )


def test_quiet_shows_why_a_script_failed(tmp_path: Path) -> None:
    write(tmp_path, "print('hello')\nraise ValueError('no such data')\n")
    done = check(tmp_path, "-q", "train.py")
    assert done.returncode == 2 and "hello" not in done.stdout + done.stderr
    assert "line 2, in <module>" in done.stderr and "ValueError: no such data" in done.stderr


def test_the_time_that_is_up_interrupts_the_script(tmp_path: Path) -> None:
    begun = time.monotonic()
    slow, quick = subprocess.Popen(["sleep", "60"]), subprocess.Popen(["true"])
    code, is_timed_out = _wait(slow, lambda: slow.wait(0.1), patrol=Patrol(tmp_path))
    assert (code, is_timed_out) == (-signal.SIGINT, True) and time.monotonic() - begun < 10
    assert _wait(quick, lambda: quick.wait(60), patrol=Patrol(tmp_path)) == (0, False)


@pytest.mark.slow
def test_a_script_that_takes_too_long_is_ended_and_its_findings_are_reported(tmp_path: Path) -> None:
    endless = SCRIPT.replace("    optimizer.step()\n", "    optimizer.step()\n    step < 5 or input()\n")
    write(
        tmp_path, endless.replace("import sys\n", "import sys, threading\ninput = threading.Event().wait\n")
    )
    done = check(tmp_path, "--timeout", "15", "train.py")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 error in 6 steps" in done.stdout
    assert "The script was ended after 15 s (--timeout)" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--timeout", "0"], "--timeout must be more than 0 seconds, got 0"),
        (["--timeout", "nan"], "--timeout must be more than 0 seconds, got nan"),
        (["--output", "."], "--output needs a file in an existing folder, got ."),
        (["--output", "missing/a.json"], "--output needs a file in an existing folder, got missing/a.json"),
    ],
)
def test_what_cannot_work_is_refused_before_the_script_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    from typer.testing import CliRunner

    from truestep.cli import build_app

    write(tmp_path, MENDED + "open('ran', 'w')\n")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(build_app(), ["check", *words, "train.py"])
    assert isinstance(done.exception, UsageError) and message in str(done.exception)
    assert not (tmp_path / "ran").exists()


@pytest.mark.verdict("not checked:")
@pytest.mark.parametrize("reasons", [[], ["the optimizer: it has no parameters"]])
def test_only_what_was_not_checked_is_said_to_be(
    capsys: pytest.CaptureFixture[str], reasons: list[str]
) -> None:
    process: Any = SimpleNamespace(not_checked=reasons, switched_off=[])
    evidence = Evidence(processes=[process])
    result = Result(code=0, evidence=evidence, rules=[], evaluation=Evaluation())
    show_faults(result, Page())
    assert capsys.readouterr().out == "".join(f"not checked: {reason}\n" for reason in reasons)
