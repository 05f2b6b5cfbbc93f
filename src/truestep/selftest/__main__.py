"""`python -m truestep.selftest --device cuda`: every promise on this device, in a form to send back."""

import argparse
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import truestep
from truestep.base.device import describe
from truestep.base.interpreter import python_module

_HERE = Path(__file__).parent
_TIMEOUT_S = 600.0
_MAX_MEMORY = 1.02
Done = subprocess.CompletedProcess[str]


class FailedError(Exception):
    """A promise does not hold."""


class Trials:
    """The trials, which share a folder. Each returns what it has shown."""

    def __init__(self, device: str, folder: Path) -> None:
        self._device, self._folder = device, folder
        for name in ("script.py", "resumed.py"):
            shutil.copy(_HERE / name, folder / name)

    def run(self, *words: str) -> Done:
        """Run a command in the folder."""
        return subprocess.run(
            words, cwd=self._folder, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )

    def _truestep(self, command: str, *words: str) -> Done:
        return self.run(*python_module("truestep", command), *words)

    def _check(self, mistake: str = "") -> Done:
        return self._truestep("check", "--format", "json", "script.py", self._device, mistake)

    def check_changes_nothing(self) -> str:
        """Bits, waits and memory are the same under `check`."""
        bare, checked = facts_of(self.run(sys.executable, "script.py", self._device)), facts_of(self._check())
        for name, words in (("digest", "weights differ"), ("waits", "waits after the first steps differ")):
            if bare[name] != checked[name]:
                raise FailedError(f"{words}: {bare[name]} bare, {checked[name]} under check")
        has_peaks = "None" not in (bare["peak"], checked["peak"])
        ratio = int(checked["peak"]) / int(bare["peak"]) if has_peaks else 1.0
        if ratio > _MAX_MEMORY and self._device != "cpu":
            raise FailedError(f"peak memory of the device is {ratio:.3f} times that of the bare script")
        return f"digest {bare['digest']}, waits after the first steps {bare['waits']}, memory x {ratio:.3f}"

    def correct_script_is_quiet(self) -> str:
        """No finding on a correct script."""
        return f"0 findings in {self._expect('', set())} steps"

    def mistakes_are_found(self) -> str:
        """A missing zero_grad and a model that sees the future are found."""
        self._expect("zero", {"LOOP01"})
        self._expect("future", {"PROBE02"})
        return "LOOP01 and PROBE02"

    def _expect(self, mistake: str, codes: set[str]) -> int:
        answer = json.loads(self._check(mistake).stdout)
        found = {item["code"] for item in answer["findings"] if item["severity"] != "info"}
        troubles = [
            *filter(None, [answer["inconclusive"]]),
            *answer["failed_observers"],
            *answer["failed_rules"],
        ]
        if found != codes or troubles:
            raise FailedError(f"found {sorted(found)} instead of {sorted(codes)}; {troubles}")
        return int(answer["steps"])

    def verify_answers(self) -> str:
        """A seeded script is the same, one without a seed is different and its cause is named."""
        same = self._truestep("verify", "script.py", self._device)
        other = self._truestep("verify", "script.py", self._device, "seed")
        if (same.returncode, other.returncode) != (0, 1):
            codes = f"{same.returncode} and {other.returncode}"
            raise FailedError(f"exit codes {codes} instead of 0 and 1: {same.stderr[-300:]}")
        return "same for the seeded script, different for the one without a seed"

    def run_resumes(self) -> str:
        """A killed `Run` ends with the bits of one that was not killed."""
        return self._succeed("verify", "--kill", "--steps", "0", "resumed.py", self._device)

    def show_lists(self) -> str:
        """`show` prints the script with its values."""
        return self._succeed("show", "script.py", self._device)

    def _succeed(self, command: str, *words: str) -> str:
        done = self._truestep(command, *words)
        if done.returncode:
            raise FailedError(f"exit code {done.returncode}: {(done.stdout + done.stderr).strip()[-400:]}")
        return f"truestep {command} ended with exit code 0"


def facts_of(done: Done) -> dict[str, str]:
    """Return the facts that the script prints."""
    found = re.search(r"^selftest: (.*)", done.stderr, re.MULTILINE)
    if not found:
        raise FailedError(f"exit code {done.returncode}: {(done.stderr or done.stdout).strip()[-400:]}")
    return dict(re.findall(r"(\w+)=(\S+)", found[1]))


def attempt(trial: Callable[[], str]) -> dict[str, Any]:
    """Run a trial, print how it ended, and return it."""
    begun = time.monotonic()
    try:
        detail, has_passed = trial(), True
    except (FailedError, subprocess.TimeoutExpired, ValueError, KeyError) as error:
        detail, has_passed = f"{type(error).__name__}: {error}", False
    title, seconds = (trial.__doc__ or "").strip().rstrip("."), round(time.monotonic() - begun, 1)
    print(
        f"{'ok    ' if has_passed else 'FAILED'} {seconds:6.1f} s  {title}: {detail}",
        file=sys.stderr,
        flush=True,
    )
    return {"trial": title, "has_passed": has_passed, "detail": detail, "seconds": seconds}


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
    device = parser.parse_args(words).device
    try:
        machine = _machine(device)
    except (RuntimeError, AssertionError, AttributeError) as error:
        print(f"{device} cannot be used: {error}. Run `truestep doctor`.", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="truestep-selftest-") as name:
        trials = Trials(device, Path(name))
        all_trials = (
            trials.check_changes_nothing,
            trials.correct_script_is_quiet,
            trials.mistakes_are_found,
            trials.verify_answers,
            trials.run_resumes,
            trials.show_lists,
        )
        outcomes = [attempt(trial) for trial in all_trials]
    print(json.dumps({"machine": machine, "outcomes": outcomes}, indent=2))
    return int(not all(item["has_passed"] for item in outcomes))


if __name__ == "__main__":
    sys.exit(main())
