"""What a script keeps besides what its optimizers own: found by name, wherever it lives, and nothing else."""

import subprocess
from pathlib import Path

import pytest

from truestep import watch

HEAD = """\
import copy, collections
import numpy as np
import torch
from torch import nn

class Average:
    def __init__(self, model):
        self.shadow = [item.detach().clone() for item in model.parameters()]
    def __call__(self, model):
        for mine, item in zip(self.shadow, model.parameters()):
            mine.lerp_(item.detach(), 0.1)

def step(x):
    noise = torch.randn(3)
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()

torch.manual_seed(0)
data = torch.randn(64, 4)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
LOOP = """\
average, teacher = Average(model), copy.deepcopy(model)
queue, memory, total = torch.zeros(4, 4), collections.deque(maxlen=2), torch.zeros(())
for epoch in range(2):
    seen = torch.zeros(4)
    for number in range(2):
        x = data[torch.randint(0, 64, (4,))]
        step(x)
        average(model)
        teacher.weight.data.lerp_(model.weight.data, 0.1)
        queue = torch.cat([queue, x])[-4:]
        memory.append(x[0])
        total += 1
        seen = seen + 1
"""
FUNCTION = "def main():\n" + "".join(f"    {line}\n" for line in LOOP.splitlines()) + "main()\n"
CLASS = """\
class Trainer:
    def __init__(self):
        self.average, self.teacher = Average(model), copy.deepcopy(model)
    def train_step(self, x):
        step(x)
        self.average(model)
    def fit(self):
        for x in data.split(16):
            self.train_step(x)
Trainer().fit()
"""
OF_LOOP = {"average.shadow.0", "average.shadow.1", "teacher.weight", "teacher.bias", "queue", "seen", "data"}
OF_CLASS = {"data", *(f"self.{name}" for name in OF_LOOP if name.startswith(("average", "teacher")))}


def run(folder: Path, text: str) -> watch.Process:
    script, kept = folder / "train.py", folder / "evidence"
    script.write_text(text)
    kept.mkdir()
    words = watch.command(script, plan=watch.Plan(digests=watch.DIGESTS), folder=kept)
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    (process,) = watch.read(kept)
    assert done.returncode == 0 and process.troubles == [], done.stderr
    return process


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (LOOP, OF_LOOP),
        (FUNCTION, OF_LOOP),
        (CLASS, OF_CLASS),
    ],
    ids=["module", "function", "class"],
)
def test_what_outlives_a_step_is_found_by_name(tmp_path: Path, text: str, names: set[str]) -> None:
    process = run(tmp_path, HEAD + text)
    first, last = (process.updates[place].parts["kept"] for place in (0, -1))
    assert {name for name in last if not name.startswith("memory")} == names
    changed = {name for name in names if first[name] != last[name]}
    assert changed >= {name for name in names if "average" in name} and "data" not in changed


def test_what_is_changed_after_the_last_step_is_seen_at_the_end(tmp_path: Path) -> None:
    process = run(tmp_path, HEAD + LOOP + "teacher.bias.data.zero_()\n")
    assert process.kept["teacher.bias"] != process.updates[-1].parts["kept"]["teacher.bias"]


def test_a_large_tensor_changed_behind_torchs_back_is_seen_at_the_end(tmp_path: Path) -> None:
    text = "big = torch.zeros(1 << 18)\nbig.data.add_(1)\nstep(data)\nbig.data.add_(1)\nstep(data)\n"
    process = run(tmp_path, HEAD + text)
    assert len({update.parts["kept"]["big"] for update in process.updates}) == 1
    assert process.kept["big"] != process.updates[-1].parts["kept"]["big"]


def test_saved_files_have_digests_by_name_without_states_of_generators(tmp_path: Path) -> None:
    text = """\
step(data)
torch.save({"model": model.state_dict(), "rng": torch.get_rng_state(), "epoch": 1}, "a.pt")
torch.save(obj=(data, model), f="b.pt")
np.savez("c.npz", data=data.numpy())
np.save("d.npy", data.numpy())
from safetensors.torch import save_file
save_file({"data": data}, "e.safetensors")
"""
    process = run(tmp_path, HEAD + text)
    saves = {moment.facts["path"]: moment.value for moment in process.moments if moment.kind == "save"}
    assert [*saves] == ["a.pt", "b.pt", "c.npz", "d.npy", "e.safetensors"]
    assert [*saves["a.pt"]] == ["model.weight", "model.bias"]
    assert len(saves["b.pt"]) == 3 and len(saves["d.npy"]) == 1
    assert [*saves["c.npz"]] == ["data"] == [*saves["e.safetensors"]]


def test_a_functions_variables_are_not_kept_alive(tmp_path: Path) -> None:
    text = """\
import weakref
class Thing: pass
def clean():
    for number in range(3):
        thing = Thing()
        gone = weakref.ref(thing)
        step(data)
        del thing
        assert gone() is None
clean()
"""
    run(tmp_path, HEAD + text)


def test_what_a_script_keeps_does_not_notice_that_it_is_read(tmp_path: Path) -> None:
    text = """\
calls = []
class Counted(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        calls.append(function)
        return super().__torch_function__(function, types, args, kwargs or {})
class Proxy:
    __slots__ = ()
    def __getattr__(self, name):
        calls.append(name)
        raise AttributeError(name)
queue, proxy = torch.zeros(4).as_subclass(Counted), Proxy()
calls.clear()
for number in range(2):
    step(data)
torch.save({"data": data}, "a.pt")
assert calls == [], calls
"""
    process = run(tmp_path, HEAD + text)
    assert "queue" in process.updates[-1].parts["kept"]
