"""Watching a script on an accelerator: the same bits, and no wait that the script would not have."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.accelerator import environment
from tests.gathering import run_script
from truestep.watch.evidence.facts.passes import LayerActivity

SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(7)
x = torch.rand(2400, 16)
loader = DataLoader(TensorDataset(x, (x.sum(1) > 8).long()), batch_size=16, shuffle=True, pin_memory=True)
model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 10))
model.to("toy")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(2):
    for x, y in loader:
        loss = F.cross_entropy(model(x.to("toy", non_blocking=True)), y.to("toy", non_blocking=True))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    print(loss.item())
"""
NUM_STEPS = 300
"""More than those after which values are read again on the CPU."""
NUM_LOOKED_AT, MAX_AT_END = 8, 5
"""Steps that are looked at closely, and waits after the last of them: what its update has changed."""


def waits_by_step(folder: Path, *words: str) -> tuple[str, Counter[int]]:
    log = folder / "log"
    log.unlink(missing_ok=True)
    variables = {**os.environ, **environment(TOY_LOG=str(log))}
    words = (sys.executable, *words, "train.py")
    done = subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    processes = [json.loads(line) for line in log.read_text().splitlines()]
    (trained,) = [process for process in processes if process["steps"]]
    assert trained["steps"] == NUM_STEPS
    return done.stdout + done.stderr, Counter(wait["step"] for wait in trained["waits"])


def test_check_never_waits_for_the_device_after_the_first_steps(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    printed, bare = waits_by_step(tmp_path)
    told, watched = waits_by_step(tmp_path, "-m", "truestep", "check")
    assert f"nothing found in {NUM_STEPS} steps" in told
    assert all(line in told for line in printed.splitlines())  # the losses, to the last digit
    later = range(NUM_LOOKED_AT + 1, NUM_STEPS)
    assert {step: watched[step] for step in later} == {step: bare[step] for step in later}
    assert watched[NUM_LOOKED_AT] <= MAX_AT_END


LARGE = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.EmbeddingBag(210_000, 100), nn.ReLU(), nn.Linear(100, 2)).to("{device}")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    tokens = torch.randint(0, 210_000, (8, 3)).to("{device}")
    loss = nn.functional.cross_entropy(model(tokens), tokens[:, 0] % 2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_large_models_are_probed_on_the_cpu_and_named_on_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    found = {}
    for device in ("cpu", "toy"):
        script = tmp_path / f"{device}.py"
        script.write_text(LARGE.format(device=device))
        found[device] = run_script(script).evidence
    assert found["cpu"].first.not_checked == []
    assert found["cpu"].of(LayerActivity) and not found["toy"].of(LayerActivity)
    (reason,) = found["toy"].first.not_checked
    assert reason == "a model with 21M parameters is too large to be copied from toy:0"
