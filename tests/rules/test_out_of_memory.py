"""Memory that runs out: what is reported, and that nothing else changes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.accelerator import environment

BLOCKS = """
import torch
import torch.nn.functional as F
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256)

    def forward(self, x):
        h = F.gelu(self.up(x))
        return x + self.down(h)

torch.manual_seed(0)
model = nn.Sequential(*[Block() for _ in range(4)], nn.Linear(256, 10)).to("toy")
optimizer = torch.optim.AdamW(model.parameters())
for step in range(6):
    num = SIZES
    x, y = torch.randn(num, 256, device="toy"), torch.randint(0, 10, (num,), device="toy")
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
"""
LIMIT = 100_000_000


def check(folder: Path, text: str) -> tuple[int, dict[str, Any], str]:
    """Run `truestep check` on the device; return its exit code, its JSON and what the script printed."""
    path = folder / "train.py"
    path.write_text(text)
    words = [sys.executable, "-m", "truestep", "check", "--format", "json", str(path)]
    variables = environment(TOY_MEMORY_BYTES=str(LIMIT))
    done = subprocess.run(words, cwd=folder, env=_env(variables), capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout), done.stderr


def _env(more: dict[str, str]) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}


def fits(folder: Path, size: int) -> bool:
    path = folder / "plain.py"
    path.write_text(BLOCKS.replace("SIZES", str(size)))
    variables = _env(environment(TOY_MEMORY_BYTES=str(LIMIT)))
    done = subprocess.run([sys.executable, str(path)], env=variables, capture_output=True, check=False)
    return done.returncode == 0


def test_what_held_memory_is_reported_by_module_and_line_and_the_error_is_the_scripts_own(
    tmp_path: Path,
) -> None:
    code, answer, printed = check(tmp_path, BLOCKS.replace("SIZES", "2400"))
    (finding,) = [item for item in answer["findings"] if item["code"] == "LONG06"]
    memory = answer["memory"]
    assert code == 2 and answer["exit_code"] == 1
    assert printed.rstrip().splitlines()[-1].startswith("torch.OutOfMemoryError: toy out of memory")
    num = sum(p * 4 for p in ((256 * 1024 * 2 + 1024 + 256) * 4, 256 * 10 + 10))
    assert memory["held"]["parameters"] == pytest.approx(num, rel=0.01)  # the device rounds up to 512 bytes
    held = sum(memory["held"].values())
    assert held + memory["free_bytes"] == LIMIT
    assert memory["held"]["other"] < 0.02 * LIMIT
    first = memory["holders"][0]
    assert first["module"].endswith(".up") or first["module"] in "0123"
    assert first["file"].endswith("train.py") and "gelu" in BLOCKS.splitlines()[first["line"] - 1]
    assert finding["line"] == memory["line"] and "parameters 8 MB" in finding["evidence"]


@pytest.mark.slow
def test_a_batch_that_is_said_to_fit_fits(tmp_path: Path) -> None:
    """The first steps have half the batch: a complete step was measured when memory runs out."""
    _, answer, _ = check(tmp_path, BLOCKS.replace("SIZES", "700 if step < 2 else 2000"))
    memory = answer["memory"]
    size = memory["fitting_batch_size"]
    assert memory["batch_size"] == 2000 and not memory["is_partial"]
    assert fits(tmp_path, size) and not fits(tmp_path, int(size * 1.1))


@pytest.mark.slow
def test_in_the_first_step_the_batch_is_an_upper_bound(tmp_path: Path) -> None:
    _, answer, _ = check(tmp_path, BLOCKS.replace("SIZES", "2600"))
    size = answer["memory"]["fitting_batch_size"]
    assert answer["memory"]["is_partial"] and not fits(tmp_path, size + 1)
    (finding,) = [item for item in answer["findings"] if item["code"] == "LONG06"]
    assert f"at most {size} would have fitted" in finding["fix"]


@pytest.mark.slow
def test_an_error_that_the_script_handles_is_not_reported(tmp_path: Path) -> None:
    text = BLOCKS.replace("SIZES", "3000 // (1 + 3 * bool(step))")
    before, loop = text.split("    optimizer.zero_grad()\n")
    body = "".join(f"    {line}\n" for line in ("    optimizer.zero_grad()\n" + loop).splitlines())
    text = f"{before}    try:\n{body}    except torch.OutOfMemoryError:\n        print('smaller')\n"
    code, answer, printed = check(tmp_path, text)
    assert "smaller" in printed and answer["exit_code"] == 0
    assert answer["memory"] is None and "LONG06" not in {item["code"] for item in answer["findings"]}
    assert code == 0


def test_the_peak_is_expected_before_the_first_step(tmp_path: Path) -> None:
    text = BLOCKS.replace("SIZES", "600")
    text += "import sys; print('peak', torch.accelerator.max_memory_allocated(), file=sys.stderr)\n"
    _, answer, printed = check(tmp_path, text)
    expected, found = answer["expected_memory"], int(printed.split("peak ")[1].split()[0])
    state = 2 * 4 * ((256 * 1024 * 2 + 1024 + 256) * 4 + 256 * 10 + 10)
    # An estimate: parts that are not foreseen are small.
    assert expected["peak_bytes"] == pytest.approx(found, rel=0.1)
    assert expected["state_bytes"] == state and expected["limit_bytes"] == LIMIT
    assert answer["memory"] is None


@pytest.mark.slow
def test_a_step_that_cannot_fit_was_expected(tmp_path: Path) -> None:
    """The first passes fit. The second ones do not, beside the optimizer's state."""
    _, answer, _ = check(tmp_path, BLOCKS.replace("SIZES", "2000"))
    expected = answer["expected_memory"]
    assert answer["steps"] == 1 and expected["peak_bytes"] > expected["limit_bytes"] == LIMIT
    (finding,) = [item for item in answer["findings"] if item["code"] == "LONG06"]
    assert "Before the first step, " in finding["evidence"]


@pytest.mark.slow
def test_an_unknown_optimizer_is_named_beside_the_estimate(tmp_path: Path) -> None:
    own = "class Own(torch.optim.AdamW):\n    pass\n\n"
    text = BLOCKS.replace("SIZES", "300").replace("torch.optim.AdamW", "Own")
    _, answer, _ = check(tmp_path, text.replace("torch.manual_seed(0)", own + "torch.manual_seed(0)"))
    assert answer["expected_memory"]["without_state"] == ["Own"]
    assert answer["expected_memory"]["state_bytes"] == 0
