"""A script for CUDA runs on a machine without one, and computes and shows what its twin for the CPU does."""

import json
import sys
from pathlib import Path
from typing import Literal

import pytest

from tests.watch.watching import SCRIPTS, marked, run, run_bare, run_watched, seen
from truestep import watch
from truestep.cli._page import Page

SCRIPT = SCRIPTS / "for_cuda.py"
REDIRECTED = watch.Plan(cuda_devices=1)


def write_twin(folder: Path) -> Path:
    twin = folder / "twin.py"
    twin.write_text(SCRIPT.read_text().replace('"cuda:0"', '"cpu"').replace('"cuda"', '"cpu"'))
    return twin


def test_script_for_cuda_computes_and_shows_what_its_twin_for_the_cpu_does(tmp_path: Path) -> None:
    bare = run_bare(SCRIPT)
    assert bare.code == 1 and ("CUDA" in bare.stderr or "NVIDIA" in bare.stderr)
    done = run_watched(SCRIPT, folder=tmp_path, plan=REDIRECTED)
    assert done.code == 0, done.stderr
    twin = write_twin(tmp_path)
    assert done.stdout == run_bare(twin).stdout
    (process,) = watch.read(tmp_path)
    lines = seen(process, SCRIPT)
    assert {kind: lines[kind] for kind in marked(SCRIPT)} == marked(SCRIPT)


def test_all_that_scripts_ask_of_cuda_is_answered(tmp_path: Path) -> None:
    done = run_watched(SCRIPTS / "asks_cuda.py", folder=tmp_path, plan=REDIRECTED)
    assert (done.code, done.stdout) == (0, "all answered\n"), done.stderr


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("torch.cuda.CUDAGraph()", "torch.cuda.CUDAGraph"),
        ("torch.cuda.cudart()", "torch.cuda.cudart"),
        (
            "torch.UntypedStorage(4, device='cuda')",
            "the use of CUDA in `torch.UntypedStorage(4, device='cuda')`",
        ),
    ],
)
def test_what_is_not_redirected_is_refused_at_its_line(tmp_path: Path, line: str, named: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import torch\n\n{line}\n")
    done = run_watched(script, folder=tmp_path, plan=REDIRECTED)
    assert done.code == 1
    assert f"--device cpu does not redirect {named.format(line=line)}, called at {script}:3." in done.stderr


COMPILED = """\
import torch

@torch.compile(fullgraph=True, backend="aot_eager")
def step(x):
    with torch.autocast("cuda"):
        y = x.cuda() @ torch.zeros(2, 2, device="cuda")
    return y.to("cuda:0") + torch.arange(2, device=x.device)

print(step(torch.ones(2, 2)))
"""


def test_compiled_code_is_redirected_without_a_break(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(COMPILED)
    done = run_watched(script, folder=tmp_path, plan=REDIRECTED)
    assert done.stdout == "tensor([[0., 1.],\n        [0., 1.]], dtype=torch.bfloat16)\n", done.stderr


CHILDREN = """\
import multiprocessing
import sys

import torch
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.full((2,), index, device="cuda")


if __name__ == "__main__":
    for batch in DataLoader(Numbers(), num_workers=1, multiprocessing_context=sys.argv[1]):
        print(batch.tolist())
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_loader_workers_are_redirected(tmp_path: Path, method: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(CHILDREN)
    done = run_watched(script, method, folder=tmp_path, plan=REDIRECTED)
    assert done.stdout.split("\n")[:-1] == [f"[[{number}, {number}]]" for number in range(4)], done.stderr


PARALLEL = """\
import os
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
assert torch.cuda.device_count() == dist.get_world_size() == 2 and dist.is_nccl_available()
torch.cuda.set_device(rank)
torch.manual_seed(0)
model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(4, 1), nn.BatchNorm1d(1))).cuda(rank)
model = nn.parallel.DistributedDataParallel(model, device_ids=[rank], output_device=rank)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 4, device=f"cuda:{rank}")).pow(2).mean().backward()
    optimizer.step()
dist.barrier(device_ids=[rank])
assert torch.cuda.current_device() == rank and dist.get_backend() == "gloo"
dist.destroy_process_group()
"""


def test_two_processes_with_nccl_are_checked(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PARALLEL)
    words = ["check", "--device", "cpu", "--processes", "2", "--format", "json", "train.py"]
    done = run([sys.executable, "-m", "truestep", *words], cwd=tmp_path)
    answer = json.loads(done.stdout)
    assert (done.code, answer["steps"], answer["findings"]) == (0, 2, []), done.stderr
    assert answer["device"] == "cpu" and answer["redirected"].startswith("cuda is redirected to the CPU: ")


COMMANDS = {
    "check": ["check", "--steps", "3"],
    "verify": ["verify", "--steps", "3"],
    "show": ["show", "--steps", "3"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_states_that_cuda_is_redirected(tmp_path: Path, name: str) -> None:
    words = [sys.executable, "-m", "truestep", *COMMANDS[name], "--device", "cpu", str(SCRIPT)]
    done = run(words, cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()].count(
        "cuda is redirected to the CPU"
    ) == 1


LIGHTNING = """\
import lightning
import torch

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        return self.layer(batch).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

lightning.seed_everything(1)
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
trainer = lightning.Trainer(accelerator="gpu", devices=1, precision="16-mixed", max_steps=4, **quiet)
trainer.fit(Model(), torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=8, pin_memory=True))
device = trainer.strategy.root_device
"""
ACCELERATE = """\
import torch
from accelerate import Accelerator

torch.manual_seed(0)
accelerator = Accelerator(mixed_precision="fp16")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x in loader:
    optimizer.zero_grad()
    accelerator.backward(model(x).pow(2).mean())
    optimizer.step()
device = accelerator.device
"""
TRAINER = """\
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=16, n_positions=8))
rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 16, (16, 8))]
options = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "logging_strategy": "no"}
arguments = TrainingArguments("out", per_device_train_batch_size=4, max_steps=4, fp16=True, **options)
Trainer(model=model, args=arguments, train_dataset=rows).train()
device = arguments.device
"""


@pytest.mark.slow
@pytest.mark.cold  # frameworks that were imported before know that there is no CUDA
@pytest.mark.parametrize(
    "source", [LIGHTNING, ACCELERATE, TRAINER], ids=["lightning", "accelerate", "trainer"]
)
def test_scripts_of_frameworks_for_cuda_are_checked(tmp_path: Path, source: str) -> None:
    (tmp_path / "train.py").write_text(source + 'assert device.type == "cuda"\n')
    words = ["check", "--device", "cpu", "--format", "json", "train.py"]
    done = run([sys.executable, "-m", "truestep", *words], cwd=tmp_path)
    answer = json.loads(done.stdout)
    assert (answer["exit_code"], answer["steps"], answer["findings"]) == (0, 4, []), done.stderr


@pytest.mark.verdict(
    "cuda is redirected to the CPU: speed, memory and device placement on a GPU are not checked"
)
@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_script_that_was_not_redirected_is_not_said_to_be(
    capsys: pytest.CaptureFixture[str], device: Literal["cpu"] | None
) -> None:
    Page().show_device(watch.Script(path="train.py", device=device))
    assert ("cuda is redirected" in capsys.readouterr().out) is (device is not None)
