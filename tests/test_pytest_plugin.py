"""The pytest plugin: what passes, what fails and how it looks, and what it costs those who do not use it."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import truestep
import truestep.verify

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parent.parent
LOOP = """
import pytest
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)

def train(model, optimizer, is_zeroed=True):
    for _ in range(3):
        x = torch.randn(8, 4)
        if is_zeroed:
            optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
"""


@pytest.fixture(scope="module", autouse=True)
def everything_imported():
    """pytester forgets modules that a run has imported, and torch refuses to be imported twice."""
    with truestep.checking():
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()


@pytest.fixture
def run(pytester, monkeypatch):
    """Run pytest over a file in this process, with the plugin as an installed package has it."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")

    def act(code, *options):
        pytester.makepyfile(LOOP + code)
        words = ("-p", "no:truestep", "-p", "truestep.pytest_plugin", "-p", "no:cacheprovider", *options)
        return pytester.runpytest_inprocess(*words)

    return act


def test_correct_training_passes(run):
    result = run("""
@pytest.mark.trains_correctly
def test_loop():
    train(*make())

@pytest.mark.trains_correctly
class TestLoop:
    def test_in_a_class(self):
        train(*make())
""")
    result.assert_outcomes(passed=2)


def test_mistake_fails_and_is_shown_at_its_line(run):
    result = run("""
@pytest.mark.trains_correctly
def test_loop():
    train(*make(), is_zeroed=False)
""")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "truestep: 1 error in 3 steps",
            "error  LOOP01 stale-gradients",
            "  test_mistake_fails_and_is_shown_at_its_line.py:16",
            "    loss.backward()",
            "  gradients are not zeroed between steps: zero_grad() is missing",
            "  seen   step 2*",
            "  fix    Call optimizer.zero_grad()*",
            "FAILED *::test_loop - Failed: tr*",
        ]
    )


def test_marker_works_for_unittest_and_takes_rules(run):
    result = run("""
import unittest

class TestLoop(unittest.TestCase):
    @pytest.mark.trains_correctly
    def test_wrong(self):
        train(*make(), is_zeroed=False)

    @pytest.mark.trains_correctly(ignore=["LOOP01"])
    def test_ignored(self):
        train(*make(), is_zeroed=False)
""")
    result.assert_outcomes(failed=1, passed=1)


def test_test_without_training_is_inconclusive_and_fails(run):
    result = run("""
@pytest.mark.trains_correctly
def test_nothing():
    pass
""")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["truestep: nothing found in 0 steps; inconclusive: No optimizer step ran*"])


def test_own_failure_is_shown_first_and_findings_beside_it(run):
    result = run("""
@pytest.mark.trains_correctly
def test_loop():
    train(*make(), is_zeroed=False)
    assert 1 == 2
""")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*assert 1 == 2*", "*Captured truestep call*", "error  LOOP01*"])


def test_skipped_test_stays_skipped(run):
    result = run("""
@pytest.mark.trains_correctly
def test_loop():
    pytest.skip("not today")

@pytest.mark.xfail(strict=True)
@pytest.mark.trains_correctly
def test_known():
    train(*make(), is_zeroed=False)
""")
    result.assert_outcomes(skipped=1, xfailed=1)


def test_unknown_option_of_a_marker_is_refused(run):
    result = run("""
@pytest.mark.trains_correctly(steps=5)
def test_loop():
    train(*make())
""")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*trains_correctly got steps. It takes select=, ignore=.*"])


@pytest.mark.slow
def test_fixture_checks_and_verifies_a_script(run, pytester):
    pytester.path.joinpath("train.py").write_text(
        LOOP.replace("import pytest\n", "") + "\ntrain(*make(), False)\n"
    )
    result = run("""
def test_check(training):
    training.check("train.py", steps=3)

def test_verify(training):
    assert training.verify("train.py").same

def test_missing(training):
    with pytest.raises(Exception, match="is not a file"):
        training.check("nope.py")
""")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        ['>   *training.check("train.py", steps=3)', "E   *CheckFailed: 1 error in train.py"]
    )


@pytest.mark.slow
def test_reproducible_and_resumable_run_the_test_in_new_processes(run, pytester):
    pytester.makeini("[pytest]\naddopts = -m 'not special'\nmarkers = special")
    result = run(
        """
@pytest.fixture
def unseeded():
    model = nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)

@pytest.mark.reproducible
def test_seeded(tmp_path):
    model, optimizer = make()
    train(model, optimizer)
    torch.save(model.state_dict(), tmp_path / "model.pt")

@pytest.mark.reproducible(runs=2)
def test_unseeded(unseeded):
    train(*unseeded)

def resume(path):
    model, optimizer = make()
    start = 0
    if path.exists():
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        torch.set_rng_state(saved["generator"])
        start = saved["step"]
    for step in range(start, 6):
        x = torch.randn(8, 4)
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
        state = {"model": model.state_dict(), "generator": torch.get_rng_state(), "step": step + 1}
        torch.save(state, path)

@pytest.mark.resumable
def test_resumes(training):
    resume(training.folder / "last.pt")
""",
    )
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["truestep: different: before the first step*", "*cause*never seeded*"])
    assert not pytester.path.joinpath(".truestep-folder").exists()


def test_entry_point_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"truestep": "truestep.pytest_plugin"}


@pytest.mark.cold
def test_plugin_imports_neither_torch_nor_more_of_truestep():
    code = (
        "import argparse, contextlib, sys, pytest; before = set(sys.modules); import truestep.pytest_plugin; "
        "new = set(sys.modules) - before - {'truestep', 'truestep.errors', 'truestep.pytest_plugin'}; "
        "sys.exit(str(new) if new else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
