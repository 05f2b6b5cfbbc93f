"""The preloaded Python of the tests does what Python does, and starts cold where a fork would differ."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests import preloaded

SHOW = "import sys; print(sys.argv, __name__, sys.flags.safe_path, sys.orig_argv[1:], sys.stdin.read())"
STEPS = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(20):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
print(torch.get_num_threads(), [p.sum().item().hex() for p in model.parameters()])
"""
WRITES = "import sys; print('a'); sys.stderr.write('b'); print('c'); sys.stderr.write('d')"
IS_PRELOADED = "import sys; print('torch' in sys.modules)"


def run_together(python: str, *words: str) -> str:
    words = (python, *words)
    return subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
    ).stdout


def run(python: str, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, *words], capture_output=True, text=True, check=False, timeout=60, **{"input": "", **options}
    )


@pytest.mark.parametrize(
    "words",
    [
        ("-c", SHOW, "a", "-b"),
        ("-u", "-c", SHOW),
        ("show.py", "--lr", "1"),
        ("-m", "show", "x"),
        ("missing.py",),
        ("-c", "import sys; sys.exit(7)"),
        ("-c", "import sys; sys.exit('in words')"),
        ("-c", "def f():\n    1 / 0\nf()"),
        ("failing.py",),
        ("-c", "import os; os.kill(os.getpid(), 15)"),
        ("-c", "raise KeyboardInterrupt"),
        ("-c", "import atexit; atexit.register(print, 'last'); print('first')"),
        ("-c", "import threading; threading.Timer(0.1, print, ['from a thread']).start()"),
        ("-c", "import os, sys; print(os.getcwd(), sys.path[0], os.environ.get('WORD'))"),
        ("-c", STEPS),
    ],
)
def test_a_preloaded_start_does_what_a_cold_one_does(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "show.py").write_text(SHOW)
    (tmp_path / "failing.py").write_text("import torch\n\ntorch.ones(2) @ torch.ones(3)\n")
    surroundings = {"cwd": tmp_path, "input": "read", "env": os.environ | {"WORD": "w"}}
    cold, warm = (run(python, *words, **surroundings) for python in (preloaded.REAL, sys.executable))
    assert (warm.returncode, warm.stdout) == (cold.returncode, cold.stdout)
    assert warm.stderr.replace(sys.executable, preloaded.REAL) == cold.stderr


@pytest.mark.parametrize("options", [(), ("-u",)])
def test_output_comes_in_the_same_order(options: tuple[str, ...]) -> None:
    cold, warm = (run_together(python, *options, "-c", WRITES) for python in (preloaded.REAL, sys.executable))
    assert warm == cold


def test_generators_that_are_not_seeded_differ_from_start_to_start() -> None:
    code = "import numpy, random, torch; print(numpy.random.rand(), random.random(), torch.rand(1).item())"
    first, second = (run(sys.executable, "-c", code).stdout.split() for _ in range(2))
    assert len({*first, *second}) == 6


def test_what_a_preloaded_start_starts_is_preloaded_too() -> None:
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {IS_PRELOADED!r}], check=True)"
    assert run(sys.executable, "-c", code).stdout == "True\n"
    assert run(preloaded.REAL, "-c", IS_PRELOADED).stdout == "False\n"


@pytest.mark.parametrize(
    "surroundings",
    [
        {"env": {"PYTHONHASHSEED": "3"}},
        {"env": {"OMP_NUM_THREADS": "2"}},
        {"env": {"MALLOC_ARENA_MAX": "1"}},
        {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))},
        {"preexec_fn": lambda: os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])},
    ],
    ids=["hash seed", "threads", "allocator", "limit", "cores"],
)
def test_surroundings_that_a_fork_does_not_have_start_cold(surroundings: dict[str, Any]) -> None:
    if "env" in surroundings:
        surroundings = {"env": os.environ | surroundings["env"]}
    assert run(sys.executable, "-c", IS_PRELOADED, **surroundings).stdout == "False\n"


def test_an_inherited_descriptor_is_there(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+") as file:
        number = file.fileno()
        run(sys.executable, "-c", f"import os; os.write({number}, b'written')", pass_fds=(number,))
        assert os.pread(number, 100, 0) == b"written"


def test_options_and_a_sitecustomize_start_cold(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('customized')")
    assert run(sys.executable, "-X", "dev", "-c", IS_PRELOADED).stdout == "False\n"
    done = run(sys.executable, "-c", IS_PRELOADED, env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert done.stdout == "customized\nFalse\n"


@pytest.mark.cold
def test_a_test_that_is_marked_so_starts_cold() -> None:
    assert run(sys.executable, "-c", IS_PRELOADED).stdout == "False\n"


@pytest.mark.parametrize("is_apart", [False, True])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_signals_reach_the_process(number: int, is_apart: bool) -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    words = [sys.executable, "-c", code]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=is_apart
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        os.killpg(process.pid, number) if is_apart else process.send_signal(number)
        assert process.stdout.read() == b""  # until the process itself has ended
        assert process.wait(30) == -number
    while Path(f"/proc/{pid}").exists():  # a process that is killed takes a moment to end
        time.sleep(0.01)
