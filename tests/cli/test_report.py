"""`truestep report`, and `--record` of the commands whose answers it shows."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.report.records import killed_and_resumed
from truestep.record import read

SCRIPT = """
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    torch.nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.randint(2, (8,))).backward()
    optimizer.step()
"""


def _truestep(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from truestep.cli import main; main()", *arguments]
    return subprocess.run(
        command, cwd=folder, env=dict(os.environ), capture_output=True, text=True, check=False, timeout=300
    )


def test_report_writes_one_file_into_the_run_and_says_so(tmp_path: Path) -> None:
    killed_and_resumed(tmp_path / "run")
    done = _truestep("report", "run", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"run/report\.html \(\d+\.?\d* kB\)\n", done.stdout)
    assert (tmp_path / "run" / "report.html").read_text().startswith("<!doctype html>")


def test_a_folder_without_a_record_ends_in_a_message(tmp_path: Path) -> None:
    done = _truestep("report", ".", folder=tmp_path)
    assert done.returncode == 2
    assert "has no record.jsonl" in done.stderr


@pytest.mark.slow
def test_answers_of_check_and_verify_go_into_the_record(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    checked = _truestep("check", "--record", "run", "--format", "json", "train.py", folder=tmp_path)
    assert checked.returncode == 1, checked.stderr
    verified = _truestep("verify", "--record", "run", "--format", "json", "train.py", folder=tmp_path)
    events = {event["kind"]: event for event in read(tmp_path / "run" / "record.jsonl")}
    said = json.loads(checked.stdout)
    assert said.items() <= events["check"].items() and events["check"]["script"] == "train.py"
    answer = json.loads(verified.stdout)
    assert events["verify"]["same"] is answer["same"]
    assert [run["digest"] for run in events["verify"]["runs"]] == [run["digest"] for run in answer["runs"]]
    assert {"words", "num_steps", "parted_at"} <= events["verify"]["runs"][0].keys()
    report = _truestep("report", "run", folder=tmp_path)
    assert report.returncode == 0, report.stderr


def test_a_record_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "run").write_text("a file")
    done = _truestep("check", "--record", "run", "train.py", folder=tmp_path)
    assert done.returncode == 2
    assert "--record needs a writable folder, got run" in done.stderr
    assert not done.stdout
