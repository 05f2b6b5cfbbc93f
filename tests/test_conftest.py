"""One test changes the global settings, the next one must not see it."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent

TWO_TESTS = """
import random, signal, numpy, torch

def settings():
    return [
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.get_float32_matmul_precision(),
        signal.getsignal(signal.SIGTERM),
        torch.get_rng_state().tolist(),
        random.getstate(),
        numpy.random.get_state()[1].tolist(),
    ]

BEFORE = settings()

def test_change():
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.set_float32_matmul_precision("medium")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    torch.manual_seed(1), random.seed(1), numpy.random.seed(1)
    assert all(now != then for now, then in zip(settings(), BEFORE, strict=True))

def test_unchanged():
    assert settings() == BEFORE
"""


@pytest.mark.slow
def test_global_settings_do_not_leak_from_test_to_test(tmp_path: Path) -> None:
    script = tmp_path / "test_two.py"
    script.write_text(TWO_TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.conftest",
        f"--rootdir={tmp_path}",
        str(script),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "2 passed" in done.stdout, done.stdout


def test_a_test_runs_on_one_thread() -> None:
    assert torch.get_num_threads() == 1
