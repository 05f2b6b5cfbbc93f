"""bfloat16 against float32, with float64 as judge: which module and operation lose most."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from truestep.verify import compiled
from truestep.watch.control import lowering


class Cancel(nn.Module):
    """Loses all but the largest digits in a short format."""

    def forward(self, rows: Tensor) -> Tensor:
        return (rows + 1000.0) - 1000.0


class Noise(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        return rows + torch.randn_like(rows)


def compare(*layers: nn.Module) -> dict[str, object]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), *layers, nn.Linear(16, 4))
    return lowering.compare(model, ((torch.randn(32, 8),), {}), is_own=lambda file: file == __file__)


def test_the_module_and_the_operation_that_lose_most_are_named() -> None:
    said = compare(nn.Tanh(), Cancel(), nn.Tanh())
    assert (said["module"], said["kind"]) == ("2", "Cancel"), said
    assert (said["operation"], said["line"]) == ("aten.sub.Tensor", 20), said
    assert said["spared_apart"] < said["apart"] / 2  # type: ignore[operator]
    first, second, third = compiled.lowered_lines(said)
    assert first.startswith("bfloat16: ")
    assert second.startswith("  module 2 (Cancel) loses most")
    assert "aten.sub.Tensor" in third


def test_a_usual_model_is_not_called_different() -> None:
    said = compare(nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.3))
    assert said["is_beyond"] is False
    assert 1e-4 < said["apart"] < 0.2  # type: ignore[operator]
    assert said["plain_apart"] < 1e-5  # type: ignore[operator]


def test_a_model_that_draws_is_not_judged() -> None:
    assert "draws random numbers" in str(compare(Noise())["reason"])


TRAIN = """\
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_the_command_shows_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    words = [sys.executable, "-m", "truestep", "verify", "--precision", "--format", "json", "train.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=540)
    said = json.loads(done.stdout)
    assert (done.returncode, said["same"]) == (0, True), done.stdout + done.stderr
    assert said["precision"]["plain_apart"] < said["precision"]["apart"] < 0.5
