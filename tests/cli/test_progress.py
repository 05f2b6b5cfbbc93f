"""The progress of a command: lines, steps, and how it is ended."""

import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from truestep.cli import _progress
from truestep.cli._progress import Progress
from truestep.verify import inquiry
from truestep.verify.inquiry import verify
from truestep.verify.options import VerifyOptions
from truestep.verify.runs import Runner
from truestep.verify.verdict import Difference, Verdict
from truestep.watch import Plan, Script
from truestep.watch.launch import following


def test_a_log_gets_lines_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(_progress.time, "monotonic", lambda: now[0])
    progress = Progress("running train.py")
    times = []
    for second in range(4 * 3600):
        now[0] = float(second)
        progress.count(second, 40_000)
        progress._print_if_due()
        if capsys.readouterr().err:
            times.append(second)
    assert times[:3] == [30, 60, 90]
    assert 600 <= times[-1] - times[-2] <= 601
    assert len(times) < 50


def test_sigterm_ends_a_command_as_ctrl_c_does_and_its_handler_is_given_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(KeyboardInterrupt), Progress("running"):
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_terminal_gets_its_first_line_after_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_progress.sys.stderr, "isatty", lambda: True)
    assert Progress("running")._next_line_s == 5.0


def test_the_line_estimates_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(_progress.time, "monotonic", lambda: now[0])
    progress = Progress("running train.py")
    for step, text in ((0, ""), (1, ", step 1 of 100"), (5, ", step 5 of 100, about 95 s left")):
        now[0] = float(step)
        progress.count(step, 100)
        assert progress.text == "running train.py" + text
    progress.status("evaluating the rules")
    assert progress.text == "evaluating the rules"


def test_a_quiet_command_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("running", is_quiet=True) as progress:
        progress.count(3)
    assert capsys.readouterr() == ("", "")


def test_steps_are_read_from_the_end_of_what_a_script_writes(tmp_path: Path) -> None:
    assert following.num_steps_so_far(tmp_path) == 0
    (tmp_path / "process-1-0.jsonl").write_text('{"kind":"start"}\n{"kind":"moments","steps":7}\n{"kind":"mo')
    (tmp_path / "process-2-0.jsonl").write_text("x" * 200_000 + '\n{"kind":"moments","rows":"","steps":12}\n')
    with (tmp_path / "process-1-0.jsonl").open("a") as file:
        file.write('\n{"kind":"expected","total":2000}\n')  # to its end, not made
    assert following.num_steps_so_far(tmp_path) == 12
    steps: list[tuple[int, int | None]] = []
    with subprocess.Popen(["sleep", "0.4"]) as process:
        code = following.wait(process, tmp_path, plan=Plan(steps=20), on_step=lambda *now: steps.append(now))
    assert (code, steps) == (0, [(12, 20)])


def test_verify_counts_runs_and_ctrl_c_keeps_what_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_runner: Any, _way: Any, **_more: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(inquiry.Runner, "run", interrupted)
    told: list[str] = []
    verdict = verify(Script(path="train.py"), VerifyOptions(runs=3, is_killed=True), on_status=told.append)
    assert told == ["run 1 of 4: unmodified"]
    assert verdict.exit_code == 130
    assert verdict.as_fields()["reason"] == "Ctrl-C or SIGTERM ended it after 0 of 4 runs"
    verdict.same, verdict.is_interrupted = False, False
    verdict.end_early("Ctrl-C", num_wanted=4)  # a difference that was found stays found
    assert verdict.exit_code == 1


def test_verify_is_inconclusive_when_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.chdir(tmp_path)
    began_s = time.monotonic()
    verdict = verify(Script(path="train.py"), VerifyOptions(timeout_s=1))
    assert time.monotonic() - began_s < 50
    assert (verdict.exit_code, verdict.is_interrupted) == (2, False)
    assert verdict.reason == "--timeout 1 ended it after 0 of 2 runs"


@pytest.mark.parametrize(
    ("name", "is_proved", "cause", "evidence"),
    [
        ("unknown", False, "unknown: --timeout 9 ended the search for it", ()),
        ("hash", False, "the hash", ("likely: --timeout 9 ended the experiments",)),
        ("hash", True, "the hash", ()),
    ],
)
def test_what_ends_a_search_for_a_cause_leaves_what_was_known(
    name: str, is_proved: bool, cause: str, evidence: tuple[str, ...]
) -> None:
    nowhere: dict[str, Any] = dict.fromkeys(("operation", "module", "file", "line", "distance"))
    found = Difference(
        step=1, what="loss", name=name, cause="the hash", is_proved=is_proved, evidence=(), fix="", **nowhere
    )
    verdict = Verdict(same=False, first_difference=found)
    verdict.end_early("--timeout 9", num_wanted=2)
    told = verdict.first_difference
    assert told is not None and (told.cause, told.evidence) == (cause, evidence)
    assert verdict.exit_code == 1


def test_steps_are_counted_to_the_end_of_the_script_itself() -> None:
    told: list[tuple[int, int | None]] = []
    anything: Any = SimpleNamespace(num_steps=None, on_step=lambda *now: told.append(now))
    for known in (None, 3):
        anything.num_steps = known
        for plan, is_resumed in ((Plan(steps=100), False), (Plan(kill_at=2), False), (Plan(), True)):
            Runner._told_of(anything, plan, is_resumed)(1, plan.steps)
    assert told == [(1, None)] * 3 + [(1, 3), (1, 2), (1, None)]
