"""The self-test: passes on the test accelerator, and fails where a promise is broken."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.accelerator import environment
from truestep.selftest.__main__ import Done, FailedError, Trials, attempt, facts_of, main


@pytest.mark.slow
def test_all_promises_hold_on_the_test_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    words = [sys.executable, "-m", "truestep.selftest", "--device", "toy"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["machine"]["device device"] == "Test accelerator"
    assert [item["has_passed"] for item in answer["outcomes"]] == [True] * 6
    assert "waits after the first steps 0" in answer["outcomes"][0]["detail"]


def test_a_device_that_is_not_there_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "xpu"]) == 2
    assert "xpu cannot be used" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [("digest", "b", "weights differ"), ("waits", "3", "waits after"), ("peak", "200", "peak memory")],
)
def test_a_difference_under_check_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, reason: str
) -> None:
    facts = {"digest": "a", "waits": "0", "peak": "100"}
    answers = iter([facts, facts | {name: value}])

    def run(*_: object) -> Done:
        text = " ".join(f"{key}={item}" for key, item in next(answers).items())
        return Done("", 0, stdout="", stderr=f"selftest: {text}\n")

    trials = Trials("toy", tmp_path)
    monkeypatch.setattr(trials, "run", run)
    outcome = attempt(trials.check_changes_nothing)
    assert not outcome["has_passed"] and reason in outcome["detail"]


def test_a_script_that_fails_is_shown_with_its_error() -> None:
    with pytest.raises(FailedError, match="exit code 1: out of memory"):
        facts_of(Done("", 1, stdout="", stderr="out of memory"))
