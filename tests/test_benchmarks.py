"""Every benchmark's claim in its short form."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


def _run(script: str, *arguments: str) -> Any:
    command = [sys.executable, str(FOLDER / script), "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_kills_do_not_change_a_bit() -> None:
    result = _run("kill.py", "--kills", "20")
    assert result["kills"] >= 20 and result["in_save"] * 3 >= result["kills"]
    assert len(result["members"]) == 10
