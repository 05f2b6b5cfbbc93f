"""A training step that is compiled whole, or would be: the bits stay, and what was not observed is said."""

from pathlib import Path

import pytest

from tests.watch.watching import run_bare, run_watched, write
from truestep import watch
from truestep.check import check_plan

STEP = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 8)
model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01))
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=5)
{before}
@torch.compile(backend="eager")
def step(batch):
    optimizer.zero_grad()
    loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    return loss
for number in range(20):
    loss = step(x[torch.randint(0, 256, (32,))])
    schedule.step()
print(loss.item().hex(), [(p.sum().item().hex(), p.grad.sum().item().hex()) for p in model.parameters()])
print(sorted(torch._dynamo.utils.counters["graph_break"].items()))
{end}
"""


def both(folder: Path, text: str) -> tuple[str, str, watch.Process]:
    """Return what a script prints bare and under check, and the evidence."""
    script, evidence = write(folder, text), folder / "evidence"
    evidence.mkdir()
    bare = run_bare(script)
    checked = run_watched(script, folder=evidence, plan=check_plan())
    assert (checked.code, bare.code) == (0, 0), checked.stderr
    (process,) = watch.read(evidence)
    assert process.switched_off == []
    return bare.stdout, checked.stdout, process


def test_a_step_that_is_compiled_whole_keeps_its_bits_and_its_graphs(tmp_path: Path) -> None:
    bare, checked, process = both(tmp_path, STEP.format(before="", end=""))
    assert checked == bare
    assert process.ended == "withdrawn"
    assert process.error is not None
    assert process.error.startswith("step() at script.py:10 is compiled and trains the model")


@pytest.mark.parametrize("stance", ["force_eager", "eager_on_recompile"])
def test_a_step_whose_compilation_is_switched_off_is_observed(tmp_path: Path, stance: str) -> None:
    before = f"torch.compiler.set_stance({stance!r})"
    bare, checked, process = both(tmp_path, STEP.format(before=before, end=""))
    assert checked == bare
    assert (process.ended, process.num_steps) == ("finished", 20)


def test_steps_before_an_end_without_exit_handlers_are_counted(tmp_path: Path) -> None:
    before = 'torch.compiler.set_stance("force_eager")'
    end = "import os, sys; sys.stdout.flush(); os._exit(0)"
    _, _, process = both(tmp_path, STEP.format(before=before, end=end))
    assert (process.ended, process.num_steps) == ("finished", 20)


UPDATE = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(64, 8)
class Training:
    def __init__(self):
        self.model = nn.Linear(8, 1)
        self.o = torch.optim.AdamW(self.model.parameters(), lr=0.01)
    @torch.compile(backend="eager")
    def update(self):
        self.o.step()
training = Training()
for number in range(12):
    loss = (training.model(x) - x.sum(1, keepdim=True)).square().mean()
    training.o.zero_grad()
    loss.backward()
    training.update()
print(loss.item().hex(), sorted(torch._dynamo.utils.counters["stats"].items()))
"""


def test_a_compiled_update_that_no_name_shows_keeps_its_bits_and_graphs(tmp_path: Path) -> None:
    bare, checked, process = both(tmp_path, UPDATE)
    assert checked == bare
    assert process.num_steps == 12
