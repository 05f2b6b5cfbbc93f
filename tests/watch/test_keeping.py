"""What a script keeps besides what its optimizers own: found by name, wherever it lives, and nothing else."""

import subprocess
from pathlib import Path

import pytest
import torch

from truestep import watch
from truestep.watch.digests.fold import fold
from truestep.watch.evidence.facts.structure import FileSaved

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


def run(folder: Path, text: str, *, steps: int | None = None) -> watch.Process:
    script, kept = folder / "train.py", folder / "evidence"
    script.write_text(text)
    kept.mkdir()
    words = watch.command(script, plan=watch.Plan(digests=watch.DIGESTS, steps=steps), folder=kept)
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


HOLDERS = """\
import dataclasses, functools, itertools, types, typing, weakref
from torch.utils.data import DataLoader, TensorDataset
number = 0
def new():
    global number
    number += 1
    return torch.full((3,), float(number))
class Slotted:
    __slots__ = ("__hidden", "shown")
    def __init__(self):
        self.__hidden, self.shown = new(), new()
class Shared:
    bank: typing.ClassVar = new()
    def add(self): pass
def closing(kept):
    def inner(): return kept
    return inner
def defaults(value, *, other=new(), more=new()): pass
def generate():
    kept = new()
    while True:
        yield
@functools.lru_cache
def cached(key): return new()
def local():
    class Inner:
        kept = new()
    return Inner()
def deep(depth):
    return [{depth: deep(depth - 1)}, new()] if depth else None
cached(1)
defaults.attribute = new()
held = {
    "closure": closing(new()), "lambda": closing(closing(new())), "defaults": defaults,
    "partial": functools.partial(defaults, new(), more=new()), "method": None, "builtin": [new()].append,
    "generator": generate(), "cycle": itertools.cycle([new()]), "set": {new()}, "slots": Slotted(),
    "deque": collections.deque([new()]), "weak": weakref.WeakKeyDictionary({model: new()}), "local": local(),
    "space": types.SimpleNamespace(a=new()), "proxy": types.MappingProxyType({"a": new()}),
    "chain": collections.ChainMap({"a": new()}), "user": collections.UserDict(a=new()),
    "keys": {model: new(), optimizer: new(), 1: new(), "1": new()}, "deep": deep(9), "map": map(abs, [new()]),
    "dataset": DataLoader(TensorDataset(new(), new())),
    "data": dataclasses.make_dataclass("D", ["a"], slots=True)(new()),
    "objects": np.array([new(), None], dtype=object),
    "distribution": torch.distributions.Normal(new(), new()),
}
next(held["generator"])
shared = Shared()
shared.kept = new()
held["method"] = shared.add
model.weight.average = new()
optimizer.average = new()
optimizer.state["own"] = [new()]
model.frozen = (nn.Module(),)
model.frozen[0].bank = [new()]
only_in_hook = new()
model.register_forward_hook(lambda module, given, output, kept=only_in_hook: None)
del only_in_hook
data.kept = new()
for turn in range(2):
    step(data)
assert number == 49, number
"""


def test_whatever_holds_a_tensor_is_looked_into(tmp_path: Path) -> None:
    kept = set(run(tmp_path, HEAD + HOLDERS).updates[-1].parts["kept"].values())
    wanted = {number: fold([("", torch.full((3,), float(number)))]) for number in range(1, 50)}
    assert [number for number, digest in wanted.items() if digest not in kept] == [24, 25], "two share a name"


def test_what_only_some_rounds_make_anew_outlives_a_step(tmp_path: Path) -> None:
    text = """\
for turn in range(4):
    if turn % 2 == 0:
        target = torch.zeros(3)
    else:
        spare = torch.ones(3)
    fresh = torch.randn(3) if turn else None
    step(data)
"""
    kept = run(tmp_path, HEAD + text).updates[-1].parts["kept"]
    assert {"target", "spare"} <= {*kept} and "fresh" not in kept


def test_a_function_that_is_called_once_keeps_its_variables_though_another_one_loops(
    tmp_path: Path,
) -> None:
    text = """\
def fit():
    for turn in range(2):
        inner(turn)
def inner(turn):
    fresh = torch.randn(3)
    step(data)
def main():
    teacher = copy.deepcopy(model)
    fit()
main()
"""
    kept = run(tmp_path, HEAD + text).updates[-1].parts["kept"]
    assert "teacher.weight" in kept and "fresh" not in kept


def test_of_a_long_container_the_ends_are_looked_at_each_time_and_the_rest_in_turn(tmp_path: Path) -> None:
    text = "many = [torch.full((2,), float(n)) for n in range(4000)]\nfor turn in range(3):\n    step(data)\n"
    process = run(tmp_path, HEAD + text)
    kept = [{*update.parts["kept"]} for update in process.updates]
    assert all({"many.0", "many.3999"} <= names for names in kept)
    seen = set.union(*kept)
    assert all(f"many.{place}" in seen for place in range(4000))
    assert "many.2500" in process.kept, "at the end all are read"


def test_a_large_tensor_changed_behind_torchs_back_is_seen_in_the_next_step(tmp_path: Path) -> None:
    text = "big = torch.zeros(1 << 18)\nstep(data)\nbig.data.add_(1)\nstep(data)\nbig.data.add_(1)\n"
    process = run(tmp_path, HEAD + text)
    digests = [update.parts["kept"]["big"] for update in process.updates] + [process.kept["big"]]
    assert len({*digests}) == 3


@pytest.mark.parametrize(
    "change", ["model.weight.data.add_(1)", "optimizer.state[model.weight]['own'].add_(1)"]
)
def test_weights_and_state_changed_after_the_last_step_are_seen_at_the_end(
    tmp_path: Path, change: str
) -> None:
    ends = []
    for name, text in (("a", "pass"), ("b", change)):
        (tmp_path / name).mkdir()
        start = "step(data)\noptimizer.state[model.weight]['own'] = torch.zeros(2)\n"
        ends.append(run(tmp_path / name, HEAD + start + text).kept)
    changed = {name for name in ends[0] if ends[0][name] != ends[1][name]}
    assert changed and changed <= {"model.weight", "optimizer 0: weights", "optimizer 0: state"}, changed


def test_what_a_function_keeps_is_read_when_the_script_is_ended(tmp_path: Path) -> None:
    text = """\
def main():
    average = torch.zeros(3)
    for turn in range(5):
        step(data)
        average += 1
main()
"""
    process = run(tmp_path, HEAD + text, steps=2)
    assert process.ended == "stopped"
    assert process.kept["average"] == fold([("", torch.full((3,), 2.0))])


def test_saved_files_have_digests_by_name_without_states_of_generators(tmp_path: Path) -> None:
    text = """\
step(data)
torch.save({"model": model.state_dict(), "rng": torch.get_rng_state(), "epoch": 1}, "a.pt")
torch.save(obj=(data, model), f="b.pt")
np.savez("c.npz", data=data.numpy())
np.save("d.npy", data.numpy())
from safetensors.torch import save_file
save_file({"data": data}, "e.safetensors")
from safetensors.numpy import save_file
save_file({"data": data.numpy()}, "f.safetensors")
np.save("g.npy", [1.0, 2.0])
np.savetxt("h.txt", data.numpy())
torch.save({"mask": torch.ones(16, dtype=torch.uint8), "deep": [[[[[[data]]]]]]}, "i.pt")
"""
    process = run(tmp_path, HEAD + text)
    saves = {
        moment.facts.path: moment.facts.digests
        for moment in process.moments
        if isinstance(moment.facts, FileSaved)
    }
    more = ["f.safetensors", "g.npy", "h.txt", "i.pt"]
    assert [*saves] == ["a.pt", "b.pt", "c.npz", "d.npy", "e.safetensors", *more]
    assert [len(saves[name]) for name in more] == [1, 1, 1, 2]
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
