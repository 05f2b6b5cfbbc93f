"""Rules that compare ranks, on real jobs of two processes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gathering import expected, run_text
from truestep.check import evaluate_rules
from truestep.rules import find_rules

HEAD = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(64, 8)
data = TensorDataset(x, (x.sum(1) > 0).long())
"""
LOADER = """
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
"""
MODEL = "\nmodel = DDP(nn.Linear(8, 2))\n"
SHARDED = """
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
fully_shard(model)
"""
LOOP = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    if isinstance(loader.sampler, DistributedSampler):
        loader.sampler.set_epoch(epoch)
    for a, b in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        # clip
        optimizer.step()
"""
SAME = "\nloader = DataLoader(data, batch_size=8, shuffle=True)  # expect: DIST04\n"
UNEVEN = """
part = Subset(data, range(40) if rank == 0 else range(40, 64))
loader = DataLoader(part, batch_size=8, shuffle=True)  # expect: DIST05
"""
GOOD_CLIP = "nn.utils.clip_grad_norm_(model.parameters(), 0.1)"
SAVE_ONE = "\nif rank == 0:\n    torch.save(model.state_dict(), 'model.pt')\ndist.barrier()\n"
END = "\ndist.destroy_process_group()\n"
BUGGY = {
    "same batches": HEAD + SAME + MODEL + LOOP + END,
    "uneven batches": HEAD + UNEVEN + MODEL + LOOP + "dist.barrier()\n",
}
CLEAN = {
    "wrapped": HEAD + LOADER + MODEL + LOOP + SAVE_ONE + END,
    "called by its forward": HEAD
    + LOADER
    + MODEL
    + LOOP.replace("model(a)", "model.forward(a)")
    + SAVE_ONE
    + END,
    "sharded and clipped": HEAD + LOADER + SHARDED + LOOP.replace("# clip", GOOD_CLIP) + END,
    "joined": HEAD
    + UNEVEN.replace("  # expect: DIST05", "")
    + MODEL
    + LOOP.replace("    for a, b in loader:", "    with model.join():\n      for a, b in loader:")
    + END,
}


def check(folder: Path, text: str) -> dict[str, Any]:
    script = folder / "train.py"
    script.write_text(text)
    truestep = str(Path(sys.executable).with_name("truestep"))
    words = [truestep, "check", "--processes", "2", "--format", "json", "train.py"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=folder, timeout=300)
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["failed_rules"] == found["failed_observers"] == [], done.stderr
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGGY)
def test_a_mistake_that_only_ranks_together_show_is_found(tmp_path: Path, name: str) -> None:
    found = check(tmp_path, BUGGY[name])
    marked = {(code, line) for code, lines in expected(BUGGY[name]).items() for line in lines}
    assert {(item["code"], item["line"]) for item in found["findings"]} == marked


@pytest.mark.slow
@pytest.mark.parametrize("name", CLEAN)
def test_a_correct_job_is_not_reported(tmp_path: Path, name: str) -> None:
    found = check(tmp_path, CLEAN[name])
    assert found["exit_code"] == 0
    assert [item["code"] for item in found["findings"]] == []


SHARDED_NAN = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
nn.init.constant_(model[1].weight, float("nan"))
fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(4):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def test_sharded_gradients_that_are_not_finite_are_found() -> None:
    told = evaluate_rules(find_rules(), run_text(SHARDED_NAN).evidence)
    codes = {item.as_fields()["code"] for item in told.findings}
    assert "LOOP11" in codes
