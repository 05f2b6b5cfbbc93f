"""`truestep run`: exit codes, restarts, signals, and no process left behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from truestep.cli import run as command

TRUESTEP = str(Path(sys.executable).with_name("truestep"))

# Standard output is the first process's alone, so what each has to say goes into a file.
SAY = """
import os
def say(text):
    file = os.open("said.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{text}\\n".encode())
    os.close(file)
"""

SAY_ARGUMENTS = """
import json, os, sys
names = ["RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "OMP_NUM_THREADS"]
say(json.dumps([sys.argv[1:], *map(os.environ.get, names)]))
"""

FAIL_ON_RANK_1 = """
import os, sys, time
if os.environ["RANK"] == "1":
    sys.exit(7)
time.sleep(60)
"""

KILL_LAST_RANK = """
import os, signal, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if rank < size - 1:
    time.sleep(60)
say(f"{size} processes, restart {os.environ['TORCHELASTIC_RESTART_COUNT']}")
os.kill(os.getpid(), signal.SIGKILL)
"""

COUNT_SIGNALS = """
import os, signal, subprocess, sys, time
def count(number, frame):
    say(f"got {signal.Signals(number).name}")
    global end_s
    end_s = min(end_s, time.monotonic() + 1.0)
end_s = time.monotonic() + 60
signal.signal(signal.SIGINT, count)
signal.signal(signal.SIGTERM, count)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
say(f"ready {os.getpid()} {child.pid}")
while time.monotonic() < end_s:
    time.sleep(0.05)
sys.exit(3)
"""

# Like a training loop: all processes need each other at each step.
REDUCE = """
import os, signal, sys, time
import torch, torch.distributed as dist
from truestep.run.dist.pulse import Pulse

what, silence_s = sys.argv[1], float(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
pulse = Pulse(rank, size, silence_s=silence_s)
pulse.start()
is_first_try = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
say(f"start {time.time()}")
if what == "leave" and rank == 1:
    sys.exit(0)
if what == "leave":
    time.sleep(2 * silence_s)
    sys.exit(0)
vector = torch.ones(1000)
for step in range(30):
    pulse.step = step
    dist.all_reduce(vector)
    vector /= size
    time.sleep(0.02)
    if rank == 1 and step == 20 and is_first_try:
        say(f"{what} {time.time()}")
        if what == "raise":
            raise ValueError("a mistake in the script")
        os.kill(os.getpid(), signal.SIGSTOP if what == "stop" else signal.SIGKILL)
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def start_run(
        text: str, *, options: tuple[str, ...], arguments: tuple[str, ...] = ()
    ) -> subprocess.Popen[str]:
        script = tmp_path / "script.py"
        script.write_text(SAY + text)
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        process = subprocess.Popen(
            [TRUESTEP, "run", *options, str(script), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=tmp_path,
        )
        started.append(process)
        return process

    yield start_run
    for process in started:
        process.kill()
        process.communicate()


def finish(process: subprocess.Popen[str], *, limit_s: float = 120.0) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=limit_s)
    assert out == ""
    return process.returncode, "".join(said(process)), err


def said(process: subprocess.Popen[str]) -> list[str]:
    script = next(Path(str(item)) for item in process.args if str(item).endswith("script.py"))
    file = script.parent / "said.txt"
    return file.read_text().splitlines(keepends=True) if file.exists() else []


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until_gone(pids: list[int], *, limit_s: float) -> list[int]:
    end_s = time.monotonic() + limit_s
    while (left := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < end_s:
        time.sleep(0.05)
    return left


def read_pids(process: subprocess.Popen[str], num: int) -> list[int]:
    """Wait until so many processes have said their own and their child's id."""
    end_s = time.monotonic() + 60
    while len(said(process)) < num and time.monotonic() < end_s:
        time.sleep(0.05)
    lines = [line.split() for line in said(process)]
    assert [line[0] for line in lines] == ["ready"] * num
    return [int(pid) for line in lines for pid in line[1:]]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TRUESTEP, "run", *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-n", "0", __file__), "a run needs at least 1 process, got -n 0. Pass -n 1 or more."),
        (("-n", "2", "--min-n", "3", __file__), "got --min-n 3 with -n 2. Pass --min-n 2 or less"),
        (("-n", "2", "--min-n", "0", __file__), "got --min-n 0 with -n 2. Pass --min-n 2 or less"),
        (("--max-restarts", "-1", __file__), "--max-restarts must be 0 or more, got -1."),
        (("missing.py", "-n", "2"), "missing.py is not a file. Options of truestep come before the script"),
        ((), "Missing argument 'SCRIPT'"),
    ],
)
def test_bad_usage_exits_2_and_says_what_to_do(arguments: tuple[str, ...], message: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


@pytest.mark.cold
def test_help_does_not_import_torch() -> None:
    code = (
        "import sys; from truestep.cli import main\n"
        "try: main()\n"
        "finally: sys.stderr.write('torch' if 'torch' in sys.modules else 'light')"
    )
    command = [sys.executable, "-c", code, "run", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == "light"
    assert "--max-restarts" in done.stdout


def test_what_follows_the_script_is_its_own_and_nothing_else_is_said(start: Start) -> None:
    arguments = ("-n", "5", "--help", "--", "${local_rank}", "a$$b", "")
    code, out, err = finish(start(SAY_ARGUMENTS, options=("-n", "2"), arguments=arguments))
    assert (code, err) == (0, "")
    said = sorted((json.loads(line) for line in out.splitlines()), key=lambda line: line[1])
    assert said == [[list(arguments), rank, "2", "0", "1"] for rank in ("0", "1")]


def test_standard_output_is_that_of_the_first_process(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    # One write: `print` makes two to standard error, and those of other processes may come between.
    script.write_text("import os, sys; print('rank', os.environ['RANK']); sys.stderr.write('all\\n')")
    done = run("-n", "3", str(script))
    assert (done.returncode, done.stdout, done.stderr) == (0, "rank 0\n", "all\n" * 3)


@pytest.mark.slow
def test_one_process_keeps_its_threads(start: Start) -> None:
    code, out, err = finish(start(SAY_ARGUMENTS, options=()))
    assert (code, err, json.loads(out)) == (0, "", [[], "0", "1", "0", None])


def test_an_error_of_the_script_ends_the_run_with_its_exit_code(start: Start) -> None:
    code, out, err = finish(start(FAIL_ON_RANK_1, options=("-n", "3")), limit_s=40)
    assert (code, out) == (7, "")
    assert re.fullmatch(r"truestep: rank 1 \(pid \d+\) ended with exit code 7\n", err)


@pytest.mark.slow
def test_after_its_restarts_the_run_goes_on_with_fewer_and_ends_with_the_signal(start: Start) -> None:
    options = ("-n", "3", "--min-n", "2", "--max-restarts", "1")
    code, out, err = finish(start(KILL_LAST_RANK, options=options))
    assert code == 128 + signal.SIGKILL
    assert out.splitlines() == [
        f"{size} processes, restart {restart}" for size in (3, 2) for restart in (0, 1)
    ]
    said = [re.sub(r"pid \d+", "pid", line) for line in err.splitlines()]
    again = "restarting from the last snapshot, if there is one (restart 1 of 1)"
    assert said == [
        f"truestep: rank 2 (pid) was killed by SIGKILL; {again}",
        "truestep: rank 2 (pid) was killed by SIGKILL; no restarts left, restarting with 2 processes",
        f"truestep: rank 1 (pid) was killed by SIGKILL; {again}",
        "truestep: rank 1 (pid) was killed by SIGKILL; no restarts left (--max-restarts 1)",
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_each_process_once_and_lets_it_stop(start: Start, number: signal.Signals) -> None:
    process = start(COUNT_SIGNALS, options=("-n", "3"))
    pids = read_pids(process, 3)
    process.send_signal(number)
    code, out, err = finish(process, limit_s=40)
    assert code == 128 + number
    assert sorted(out.splitlines()[3:]) == sorted([f"got {number.name}", *["got SIGTERM"] * 2])
    (line,) = err.splitlines()
    assert line.startswith(f"truestep: {number.name} received; waiting up to 60 s for the script to stop.")
    assert wait_until_gone(pids, limit_s=2.0) == [], "what the processes started is gone too"


def test_nothing_is_left_when_the_launcher_is_killed(start: Start) -> None:
    process = start(COUNT_SIGNALS, options=("-n", "3"))
    pids = read_pids(process, 3)
    process.kill()
    started_themselves = pids[1::2]
    try:
        assert wait_until_gone(pids[0::2], limit_s=5.0) == []
    finally:
        for pid in started_themselves:  # of a script that does not look after its own
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("what", "silence_s"), [("kill", 30.0), pytest.param("stop", 2.0, marks=pytest.mark.slow)]
)
def test_a_lost_process_is_named_and_all_start_again(start: Start, what: str, silence_s: float) -> None:
    code, out, err = finish(start(REDUCE, options=("-n", "3"), arguments=(what, str(silence_s))))
    assert code == 0, err
    times = [(line.split()[0], float(line.split()[1])) for line in out.splitlines()]
    assert [name for name, _ in times] == ["start"] * 3 + [what] + ["start"] * 3
    print(f"{what}: {times[-1][1] - times[3][1]:.1f} s from the loss to the new start")
    *before, last = err.splitlines()
    fate = "was killed by SIGKILL" if what == "kill" else "stopped responding and was killed"
    assert re.fullmatch(rf"truestep: rank 1 \(pid \d+\) {fate}; restarting .* \(restart 1 of 3\)", last)
    if what == "stop":
        (line,) = before
        assert re.search(
            r"rank 1 \(pid \d+ on .*\) has given no sign of life for \d s; its last step was", line
        )
    else:
        assert before == []


@pytest.mark.slow
def test_the_error_of_one_process_is_not_drowned_by_its_peers(start: Start) -> None:
    code, _, err = finish(start(REDUCE, options=("-n", "4"), arguments=("raise", "30")))
    assert code == 1
    assert err.count("Traceback") == 1 and "ValueError: a mistake in the script" in err
    assert err.splitlines()[-1].startswith("truestep: rank 1 (pid ")


@pytest.mark.slow
def test_a_process_that_ended_well_without_a_word_is_not_lost(start: Start) -> None:
    code, _, err = finish(start(REDUCE, options=("-n", "3"), arguments=("leave", "2")))
    assert (code, err) == (0, "")


def test_nohup_stays_in_force_after_torch_has_put_its_own_handlers() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        stop = command._Stop()
        stop.install()
        signal.signal(signal.SIGHUP, lambda *_: None)
        stop.install()
        signal.raise_signal(signal.SIGHUP)
        assert stop.received is None
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
