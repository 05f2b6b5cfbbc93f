"""Where the time of a run went: the parts add up, also after a real kill."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from truestep.report.goodput import account, goodput
from truestep.report.runs import read_run

LINES = [
    {"kind": "start", "time_s": 100.0, "cursor": 0},
    {"kind": "phase", "time_s": 101.0, "first": 0, "end": 8},
    {"kind": "steps", "time_s": 105.0, "first": 0, "end_us": [1e6, 2e6, 3e6, 4e6], "wait_us": [2e5] * 4},
    {"kind": "snapshot", "time_s": 105.0, "cursor": 2, "held_s": 0.5},
    {"kind": "start", "time_s": 120.0, "cursor": 2},
    {"kind": "phase", "time_s": 122.0, "first": 2, "end": 8},
    {
        "kind": "steps",
        "time_s": 128.0,
        "first": 2,
        "end_us": [i * 1e6 for i in range(1, 7)],
        "wait_us": [2e5] * 6,
    },
    {"kind": "end", "time_s": 130.0, "cursor": 8},
    {"kind": "check", "time_s": 9000.0, "findings": []},
]


def write(folder: Path, lines: list[dict[str, object]]) -> Path:
    for line in lines:
        if line["kind"] == "steps":
            line["loss"] = [1.0] * len(line["end_us"])  # type: ignore[arg-type]
    (folder / "record.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.mark.verdict("Faster loading would gain most: truestep tune measures other numbers of workers.")
@pytest.mark.verdict("Faster steps would gain most: truestep tune measures what makes them faster.")
def test_kills_restarts_and_waits_are_told_apart(tmp_path: Path) -> None:
    story = read_run(write(tmp_path, LINES))
    found = account(story)
    assert {name: round(seconds, 6) for name, seconds in found.items()} == {
        "computing": 8 - 8 * 0.2 - 0.5,
        "waiting for data": 8 * 0.2,
        "saving snapshots": 0.5,
        "steps done again after a kill": 2.0,
        "stopped and starting again": 15.0 + 2.0,
        "everything else": 3.0,
    }
    paused = [*LINES[:4], {"kind": "end", "time_s": 105.0, "cursor": 4}, *LINES[4:]]
    assert account(read_run(write(tmp_path, paused)))["stopped and starting again"] == 2.0
    section = goodput(story)
    assert section is not None
    assert "20% of 30 s" in section.body
    assert "Quicker restarts would gain most" in section.body


def test_a_record_that_contradicts_itself_has_no_account(tmp_path: Path) -> None:
    late = [{**line, "time_s": 100.0} for line in LINES]
    assert account(read_run(write(tmp_path, late))) == {}
    assert goodput(read_run(write(tmp_path, LINES[:2]))) is None


SCRIPT = """
import time, torch, truestep as ts

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.randn(4)

run = ts.Run("run", seed=0, lanes=1, snapshots=ts.Snapshots(every_s=None, every_steps=20))
model = run.place(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run.track(model=model, optimizer=optimizer)
for step in run.steps(ts.Loader(Slow(), batch_size=4), steps=100):
    for x in step:
        step.backward(model(x).square().mean())
    step.update(optimizer)
"""


@pytest.mark.slow
def test_the_parts_of_a_killed_run_add_up(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = [sys.executable, "train.py"]
    begun = time.time()
    process = subprocess.Popen(words, cwd=tmp_path)
    snapshots = tmp_path / "run" / "snapshots"
    while not any(snapshots.glob("step-*")):
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(random.random() / 4)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    subprocess.run(words, cwd=tmp_path, check=True)
    story = read_run(tmp_path / "run")
    found = account(story)
    assert 0 < sum(found.values()) < time.time() - begun
    assert found["waiting for data"] > 0.5 * found["computing"]
    assert found["stopped and starting again"] > 0
    assert len(story.lives) == 2
