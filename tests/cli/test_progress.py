"""The progress line: on a terminal, in a log, and what is left of it."""

import os
import pty
import re
import signal
import struct
import subprocess
import sys
import time
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ
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

ROWS, COLUMNS = 20, 60
_DRAWN = re.compile(
    rb"(?:\r?\n\x1b\[A)?\x1b7\x1b\[1;19r\x1b\[20;1H\x1b\[0;7m\x1b\[K(.*?)\x1b\[K\x1b\[0m\x1b8"
)
_ERASED = b"\x1b7\x1b[r\x1b[20;1H\x1b[0m\x1b[K\x1b8"

PROGRAM = """\
import subprocess, sys, time
from truestep.cli._progress import Progress

child = "for i in range(5): print('line', i, flush=True)\\nprint('half', end='')"
with Progress("starting train.py") as progress:
    progress.status("running train.py")
    for step in range(3):
        progress.count(step + 1, 10)
        progress.found(2)
    time.sleep(0.5)
    subprocess.run([sys.executable, "-c", child], check=True)
    {then}
"""


def on_terminal(then: str = "pass", **environment: str) -> tuple[bytes, int]:
    """Run the program on a terminal and return all that it got, and the exit code."""
    pid, terminal = pty.fork()
    if pid == 0:
        ioctl(0, TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        words = [sys.executable, "-c", PROGRAM.format(then=then)]
        os.execve(words[0], words, {**os.environ, "TERM": "xterm", **environment})
    seen, deadline_s = b"", time.monotonic() + 30
    while time.monotonic() < deadline_s:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # so Linux ends a terminal
            break
        if not data:
            break
        seen += data
    os.close(terminal)
    return seen, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def without_line(seen: bytes) -> bytes:
    return _DRAWN.sub(b"", seen).replace(_ERASED, b"")


def test_the_line_is_in_the_last_row_and_the_output_of_the_script_is_untouched() -> None:
    seen, code = on_terminal()
    lines = _DRAWN.findall(seen)
    assert code == 0
    assert lines[0] == b" 0:00  starting train.py"
    assert b" 0:00  running train.py, step 3 of 10, 2 findings so far" in lines
    assert without_line(seen) == b"".join(b"line %d\r\n" % number for number in range(5)) + b"half"
    assert seen.endswith(_ERASED)  # all rows scroll again


@pytest.mark.parametrize(
    ("then", "code"),
    [
        ("raise SystemExit(7)", 7),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGINT); time.sleep(9)", -signal.SIGINT),
    ],
    ids=["exit", "SIGTERM", "Ctrl-C"],
)
def test_the_terminal_is_left_as_it_was_found(then: str, code: int) -> None:
    seen, found = on_terminal(then)
    assert _ERASED in seen
    assert _DRAWN.search(seen, seen.index(_ERASED)) is None
    assert found in (code, -signal.SIGINT)


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"TERM": "unheard-of"}])
def test_there_is_no_line_where_rows_cannot_be_addressed(environment: dict[str, str]) -> None:
    seen, _ = on_terminal(**environment)
    assert b"\x1b" not in seen


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
        progress._draw()
        if capsys.readouterr().err:
            times.append(second)
    assert times[:3] == [30, 60, 90]
    assert 600 <= times[-1] - times[-2] <= 601
    assert len(times) < 50


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
    ("is_proved", "cause"),
    [(False, "unknown: --timeout 9 ended the search for it"), (True, "the hash")],
)
def test_what_ends_a_search_for_a_cause_leaves_what_was_known(is_proved: bool, cause: str) -> None:
    nowhere: dict[str, Any] = dict.fromkeys(("operation", "module", "file", "line", "distance"))
    found = Difference(
        step=1,
        what="loss",
        name="hash",
        cause="the hash",
        is_proved=is_proved,
        evidence=(),
        fix="",
        **nowhere,
    )
    verdict = Verdict(same=False, first_difference=found)
    verdict.end_early("--timeout 9", num_wanted=2)
    told = verdict.first_difference
    assert told is not None and told.cause == cause
    assert verdict.exit_code == 1


def test_steps_are_counted_to_the_end_of_the_script_itself() -> None:
    told: list[tuple[int, int | None]] = []
    anything: Any = SimpleNamespace(num_steps=None, on_step=lambda *now: told.append(now))
    for known in (None, 3):
        anything.num_steps = known
        for plan, is_resumed in ((Plan(steps=100), False), (Plan(kill_at=2), False), (Plan(), True)):
            Runner._told_of(anything, plan, is_resumed)(1, plan.steps)
    assert told == [(1, None)] * 3 + [(1, 3), (1, 2), (1, None)]
