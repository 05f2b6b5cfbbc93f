"""A host that is cut off from the others, and comes back, does not change one bit."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
@pytest.mark.practice("P64")
def test_p64_a_host_that_was_cut_off_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run on three hosts, one of them disconnected for a while, has the bits of one process."""
    monkeypatch.syspath_prepend(str(FOLDER))
    reason = importlib.import_module("hosts").why_not()
    if reason is not None:
        pytest.skip(reason)
    scenes = ["--scenes", "undisturbed,cut", "--silence", "6"]
    command = [sys.executable, str(FOLDER / "three_hosts.py"), "--json", *scenes]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    alone, undisturbed, cut = json.loads(done.stdout)["tables"]["Three hosts"]
    assert alone["digests"] == undisturbed["digests"] == cut["digests"] != ""
    assert "host3 cut off" in cut["what happened"] and "others noticed after" in cut["what happened"]
