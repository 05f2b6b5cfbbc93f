"""`python -m truestep.selftest --device cuda`: every promise on this device, in a form to send back."""

import argparse
import json
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import truestep
from truestep.base.device import describe
from truestep.base.interpreter import python_module

_HERE = Path(__file__).parent
_TRUESTEP = python_module("truestep")
_TIMEOUT_S = 600.0
_MAX_MEMORY = 1.02


class FailedError(Exception):
    """A promise does not hold."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one trial ended."""

    trial: str
    has_passed: bool
    detail: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Done:
    """A command that has ended."""

    code: int
    output: str
    errors: str

    def fact(self, name: str) -> str:
        """Return one of the facts that the script prints."""
        found = re.search(rf"^selftest: .*\b{name}=(\S+)", self.errors, re.MULTILINE)
        if not found:
            raise FailedError(f"exit code {self.code}: {(self.errors or self.output).strip()[-400:]}")
        return found[1]


class Trials:
    """The trials, which share a folder."""

    def __init__(self, device: str, folder: Path) -> None:
        self._device, self._folder = device, folder
        for name in ("script.py", "resumed.py"):
            shutil.copy(_HERE / name, folder / name)

    def run(self, *words: str) -> Done:
        """Run a command in the folder."""
        done = subprocess.run(
            words, cwd=self._folder, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        return Done(code=done.returncode, output=done.stdout, errors=done.stderr)

    def _bare(self, mistake: str = "") -> Done:
        return self.run(sys.executable, "script.py", self._device, mistake)

    def _check(self, mistake: str = "") -> Done:
        return self.run(*_TRUESTEP, "check", "--format", "json", "script.py", self._device, mistake)

    def check_changes_nothing(self) -> str:
        """Bits, waits and memory are the same under `check`."""
        bare, checked = self._bare(), self._check()
        digests = [done.fact("digest") for done in (bare, checked)]
        if digests[0] != digests[1]:
            raise FailedError(f"weights differ: {digests[0]} bare, {digests[1]} under check")
        waits = [done.fact("waits") for done in (bare, checked)]
        if waits[0] != waits[1]:
            raise FailedError(f"waits after the first steps: {waits[0]} bare, {waits[1]} under check")
        peaks = [done.fact("peak") for done in (bare, checked)]
        ratio = 1.0 if "None" in peaks else int(peaks[1]) / int(peaks[0])
        if ratio > _MAX_MEMORY and self._device != "cpu":
            raise FailedError(f"peak memory of the device is {ratio:.3f} times that of the bare script")
        return f"digest {digests[0]}, waits after the first steps {waits[0]}, memory x {ratio:.3f}"

    def correct_script_is_quiet(self) -> str:
        """No finding on a correct script."""
        answer = json.loads(self._check().output)
        self._expect(answer, set())
        return f"0 findings in {answer['steps']} steps"

    def mistakes_are_found(self) -> str:
        """A missing zero_grad and a model that sees the future are found."""
        self._expect(json.loads(self._check("zero").output), {"LOOP01"})
        self._expect(json.loads(self._check("future").output), {"PROBE02"})
        return "LOOP01 and PROBE02"

    def _expect(self, answer: dict[str, Any], codes: set[str]) -> None:
        found = {item["code"] for item in answer["findings"] if item["severity"] != "info"}
        troubles = [answer["inconclusive"], *answer["failed_observers"], *answer["failed_rules"]]
        if found != codes or any(troubles):
            raise FailedError(
                f"found {sorted(found)} instead of {sorted(codes)}; {[t for t in troubles if t]}"
            )

    def verify_answers(self) -> str:
        """A seeded script is the same, one without a seed is different and its cause is named."""
        same = self.run(*_TRUESTEP, "verify", "--format", "json", "script.py", self._device)
        other = self.run(*_TRUESTEP, "verify", "--format", "json", "script.py", self._device, "seed")
        if (same.code, other.code) != (0, 1):
            raise FailedError(
                f"exit codes {same.code} and {other.code} instead of 0 and 1: {same.errors[-300:]}"
            )
        return "same for the seeded script, different for the one without a seed"

    def run_resumes(self) -> str:
        """A killed `Run` ends with the bits of one that was not killed."""
        words = (sys.executable, "resumed.py", self._device)
        whole = self.run(*words, "whole").fact("digest")
        process = subprocess.Popen(
            [*words, "killed"], cwd=self._folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        progress, until = self._folder / "killed-progress", time.monotonic() + _TIMEOUT_S
        while not (progress.exists() and int(progress.read_text() or 0) >= 10) and process.poll() is None:
            if time.monotonic() > until:
                break
            time.sleep(0.02)
        process.kill()
        if process.wait() != -signal.SIGKILL:
            raise FailedError(f"the run ended before it was killed, exit code {process.returncode}")
        last = progress.read_text()
        resumed = self.run(*words, "killed").fact("digest")
        if resumed != whole:
            raise FailedError(f"weights differ: {whole} in one piece, {resumed} killed and resumed")
        return f"digest {whole}, killed by SIGKILL after step {last}"

    def show_lists(self) -> str:
        """`show` prints the script with its values."""
        done = self.run(*_TRUESTEP, "show", "script.py", self._device)
        if done.code:
            raise FailedError(f"exit code {done.code}: {done.errors.strip()[-300:]}")
        return "the script was shown"


def attempt(trial: Callable[[], str]) -> Outcome:
    """Run a trial and return how it ended."""
    begun = time.monotonic()
    try:
        detail, has_passed = trial(), True
    except (FailedError, subprocess.TimeoutExpired, ValueError, KeyError) as error:
        detail, has_passed = f"{type(error).__name__}: {error}", False
    title = (trial.__doc__ or "").strip().rstrip(".")
    return Outcome(
        trial=title, has_passed=has_passed, detail=detail, seconds=round(time.monotonic() - begun, 1)
    )


def _machine(device: str) -> dict[str, Any]:
    import torch  # after --help

    found = torch.device(device)
    facts = {} if found.type == "cpu" else describe(found)
    return {
        "truestep": truestep.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "device": device,
        **{f"device {name}": value for name, value in facts.items()},
    }


def main(words: Sequence[str] | None = None) -> int:
    """Run all trials; return 0 if all pass, 1 if one fails, 2 if the device cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m truestep.selftest", description=__doc__)
    parser.add_argument("--device", required=True, help="cuda, xpu, cuda:1, ...; cpu tests the installation")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(words)
    try:
        machine = _machine(given.device)
    except (RuntimeError, AssertionError, AttributeError) as error:
        print(f"{given.device} cannot be used: {error}. Run `truestep doctor`.", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="truestep-selftest-") as name:
        trials = Trials(given.device, Path(name))
        outcomes = []
        for trial in (
            trials.check_changes_nothing,
            trials.correct_script_is_quiet,
            trials.mistakes_are_found,
            trials.verify_answers,
            trials.run_resumes,
            trials.show_lists,
        ):
            outcomes.append(attempt(trial))
            last = outcomes[-1]
            mark = "ok    " if last.has_passed else "FAILED"
            print(f"{mark} {last.seconds:6.1f} s  {last.trial}: {last.detail}", file=sys.stderr, flush=True)
    if given.json:
        print(json.dumps({"machine": machine, "outcomes": [asdict(item) for item in outcomes]}, indent=2))
    else:
        print(", ".join(f"{name} {value}" for name, value in machine.items()))
    return int(not all(item.has_passed for item in outcomes))


if __name__ == "__main__":
    sys.exit(main())
