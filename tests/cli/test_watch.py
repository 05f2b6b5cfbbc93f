"""`truestep watch` and `truestep export` as they are typed."""

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.report.growing import Writer

COMMAND = [sys.executable, "-c", "from truestep.cli import main; main()"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=60)


def finished_run(folder: Path) -> None:
    writer = Writer(folder)
    writer.start(end=2)
    writer.steps(0, [2.0, 1.0])
    writer.record.write("end", cursor=2)


def test_watch_in_a_pipe_prints_lines_and_ends_with_the_run(tmp_path: Path) -> None:
    finished_run(tmp_path / "digits")
    done = run("watch", str(tmp_path / "digits"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.rstrip().endswith("digits: done, step 2 of 2, loss 1")


def test_watch_refuses_what_is_no_folder(tmp_path: Path) -> None:
    file = tmp_path / "record.jsonl"
    file.touch()
    done = run("watch", str(file))
    assert done.returncode == 2
    assert "is a file. Pass the folder that holds record.jsonl" in done.stderr


def test_watch_refuses_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    done = run("watch", str(tmp_path / "digitz"))
    assert done.returncode == 2
    assert "digitz does not exist. Start the run first, or pass its folder" in done.stderr


def has_more(terminal: int, *, wait_s: float) -> bool:
    poll = select.poll()  # not select.select, which takes no descriptor above 1,023
    poll.register(terminal, select.POLLIN)
    return bool(poll.poll(wait_s * 1000))


def read_until(terminal: int, words: bytes) -> bytes:
    seen, deadline_s = b"", time.monotonic() + 60
    while words not in seen:
        assert time.monotonic() < deadline_s, seen[-2000:]
        if has_more(terminal, wait_s=1):
            seen += os.read(terminal, 65536)
    return seen


def test_watch_in_a_terminal_ends_by_ctrl_c_and_leaves_it_as_it_was(tmp_path: Path) -> None:
    finished_run(tmp_path / "digits")
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS="80", LINES="30")
        os.execv(COMMAND[0], [*COMMAND, "watch", str(tmp_path / "digits")])
    import termios

    try:
        before = termios.tcgetattr(terminal)
        read_until(terminal, b"Ctrl-C ends the view, not the run")
        os.write(terminal, b"\x03")
        seen = read_until(terminal, b"\x1b[?1049l")  # the screen as it was before
        assert b"\x1b[?25h" in seen + read_rest(terminal)  # the cursor is shown again
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert termios.tcgetattr(terminal) == before
    finally:
        os.close(terminal)


def read_rest(terminal: int) -> bytes:
    seen = b""
    while has_more(terminal, wait_s=2):
        try:
            data = os.read(terminal, 65536)
        except OSError:
            break
        if not data:
            break
        seen += data
    return seen


def test_export_says_where_it_wrote(tmp_path: Path) -> None:
    finished_run(tmp_path / "digits")
    done = run("export", str(tmp_path / "digits"), "--to", "csv")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"truestep: wrote {tmp_path / 'digits/record.csv'}\n"
    assert (tmp_path / "digits/record.csv").read_text().splitlines()[0] == "step,time_s,loss"
    missing = run("export", str(tmp_path), "--to", "csv")
    assert missing.returncode == 2
    assert "has no record.jsonl" in missing.stderr


@pytest.mark.parametrize("words", [("watch",), ("report",), ("export", "--to", "csv")])
def test_a_name_that_is_too_long_is_a_mistake_of_the_user(words: tuple[str, ...]) -> None:
    done = run(*words, "n" * 300)
    assert done.returncode == 2, done.stderr
    told = ("has no record.jsonl", "cannot be read (File name too long)", "does not exist")
    assert any(words in done.stderr for words in told)
