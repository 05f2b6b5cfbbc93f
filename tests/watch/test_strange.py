"""What a script is made of may be strange: it ends as it does alone, and the rest of it is observed."""

from pathlib import Path

import pytest

from tests.watch.test_start import write
from tests.watch.watching import run_watched
from truestep import watch
from truestep.check import check_plan, evaluate_rules
from truestep.rules import Evidence, find_rules
from truestep.watch.evidence.facts.optimizing import OptimizerStep, SchedulerStep
from truestep.watch.evidence.facts.passes import BackwardPass, ForwardPass, ModelUsed

LOOP = """
import os, pickle, threading, warnings
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Sampler

def train(model, loader, kind=torch.optim.SGD):
    optimizer = kind(model.parameters(), lr=0.1)
    for x in loader:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

rows = torch.ones(8, 3)
"""

STRANGE = """
def sampler_with_a_known_name():
    class RandomSampler(Sampler):
        def __init__(self, data): self.data = data
        def __iter__(self): return iter(range(len(self.data)))
        def __len__(self): return len(self.data)
    train(nn.Linear(3, 1), DataLoader(rows, 4, sampler=RandomSampler(rows)))

def nested_tensors():
    class Nested(nn.Linear):
        def forward(self, x): return super().forward(x.to_padded_tensor(0.0))
    given = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
    train(Nested(3, 1), DataLoader([given, given], batch_size=None))

def loss_without_values():
    nn.Linear(3, 1, device="meta")(torch.ones(4, 3, device="meta")).sum().backward()

def parts_that_cannot_be_listed():
    class Shy(nn.Linear):
        def named_buffers(self, *args, **kwargs): raise RuntimeError("none of your business")
        def buffers(self, *args, **kwargs): raise RuntimeError("none of your business")
    train(Shy(3, 1), DataLoader(rows, 4))

def length_that_cannot_be_told():
    class Loader(DataLoader):
        def __len__(self): raise ZeroDivisionError
    train(nn.Linear(3, 1), Loader(rows, 4))

def stream_that_gives_more_than_it_says():
    class Rows(IterableDataset):
        def __iter__(self): return iter(rows)
        def __len__(self): return 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(nn.Linear(3, 1), DataLoader(Rows(), 4))

def functions_in_a_pickle():
    for function in (os.listdir, os.scandir):
        assert pickle.loads(pickle.dumps(function)) is function

def optimizer_that_keeps_plain_tensors():
    class Plain(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            for item in self.param_groups[0]["params"]:
                self.state[item] = item.detach().clone()
    train(nn.Linear(3, 1), DataLoader(rows, 4), Plain)

for part in (
    sampler_with_a_known_name, nested_tensors, loss_without_values, parts_that_cannot_be_listed,
    length_that_cannot_be_told, stream_that_gives_more_than_it_says, functions_in_a_pickle,
    optimizer_that_keeps_plain_tensors,
):
    part()
    print(part.__name__, flush=True)
"""

NAMES_OF_TORCH = """
import importlib.util
assert importlib.util.find_spec("torch") is not None
assert importlib.util.find_spec("numpy") is not None
"""

ANEW = """
from truestep.watch.script import tape
tape._MAX_THINGS = 10
tape._MAX_KINDS = 100
model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(60):
    optimizer.zero_grad()
    nn.CrossEntropyLoss()(model(torch.ones(4, 3)), torch.zeros(4, dtype=torch.int64)).backward()
    optimizer.step()
"""

TWO_THREADS = """
begun, ended = threading.Event(), threading.Event()
class First(nn.Linear):
    def forward(self, x):
        thread.start()
        begun.wait(60)
        return super().forward(x)
class Other(nn.Sequential):
    def forward(self, x):
        begun.set()
        ended.wait(60)
        return super().forward(x)
def call():
    Other(nn.Linear(3, 3), nn.ReLU())(torch.ones(4, 3))
def go_back():
    x = torch.ones(3, requires_grad=True)
    x.register_hook(lambda gradient: (begun.set(), ended.wait(60)) and None)
    x.sum().backward()
thread = threading.Thread(target=WORK)
y = First(3, 1)(torch.ones(4, 3))
ended.set()
thread.join()
y.sum().backward()
train(nn.Linear(3, 1), DataLoader(rows, 4))
"""

LATER_THREAD = """
nn.Linear(3, 3)(torch.ones(4, 3))
thread = threading.Thread(target=train, args=(nn.Linear(3, 1), DataLoader(rows, 2)))
thread.start()
thread.join()
"""

SCHEDULED = """
from torch.optim import lr_scheduler as schedules
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = schedules.SequentialLR(
    optimizer, [schedules.LinearLR(optimizer), schedules.StepLR(optimizer, 5)], milestones=[2]
)
for _ in range(4):
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    scheduler.step()
"""


def watch_text(folder: Path, text: str, *, plan: watch.Plan | None = None) -> watch.Process:
    """Run a script watched; it ends well."""
    evidence = folder / "evidence"
    evidence.mkdir()
    done = run_watched(write(folder, text), folder=evidence, plan=plan or check_plan())
    assert done.code == 0, (done.stdout, done.stderr)
    (process,) = watch.read(evidence)
    assert process.ended == "finished"
    return process


@pytest.mark.parametrize("how", ["check", "verify"])
def test_strange_things_do_not_end_the_script(tmp_path: Path, how: str) -> None:
    full = watch.Plan(digests=watch.DIGESTS)
    process = watch_text(tmp_path, LOOP + STRANGE, plan=check_plan() if how == "check" else full)
    assert process.num_steps == 6 * 2
    assert len(process.of(BackwardPass)) == 6 * 2 + 1


PROFILED = """
with torch.profiler.profile(with_stack=True):
    train(nn.Linear(3, 1), DataLoader(rows, 4))
"""
TRACED = """
model = nn.Linear(3, 1)
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    torch.jit.trace(model, rows)
assert not [item for item in found if item.category is torch.jit.TracerWarning], found
train(model, DataLoader(rows, 4))
"""


MODULES = """
class Both(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part, self.last = part, nn.Linear(3, 1)
    def forward(self, x): return self.last(self.part(x))
MAKE
model.train() if TRAINS else None
with torch.no_grad():
    model(rows[:4])
train(Both(model), DataLoader(rows, 4))
print("done")
"""
NORMS = "nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))"
MADE = {
    "frozen": f"model = torch.jit.freeze(torch.jit.script({NORMS}.eval()))",
    "optimized": f"model = torch.jit.optimize_for_inference(torch.jit.script({NORMS}.eval()))",
    "scripted": f"model = torch.jit.script({NORMS})",
    "traced": f"model = torch.jit.trace({NORMS}.eval(), rows)",
    "exported": f"model = torch.export.export({NORMS}.eval(), (rows[:4],)).module()",
    "lazy": "model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())",
    "traced by fx": f"import torch.fx; model = torch.fx.symbolic_trace({NORMS})",
}


@pytest.mark.parametrize("made", MADE)
def test_modules_that_lack_what_others_have_are_observed(tmp_path: Path, made: str) -> None:
    trains = str(made in ("scripted", "lazy", "traced by fx"))
    text = MODULES.replace("MAKE", MADE[made]).replace("TRAINS", trains)
    process = watch_text(tmp_path, LOOP + text, plan=check_plan())
    assert process.num_steps == 2
    assert process.troubles == []


@pytest.mark.parametrize("text", [PROFILED, TRACED], ids=["profiled", "traced"])
def test_a_model_that_torch_itself_looks_into_is_let_be(tmp_path: Path, text: str) -> None:
    assert watch_text(tmp_path, LOOP + text, plan=check_plan()).num_steps == 2


def test_torch_is_observed_though_somebody_asked_before_whether_it_is_there(tmp_path: Path) -> None:
    loop = "train(nn.Linear(3, 1), DataLoader(rows, 4))"
    process = watch_text(tmp_path, f"{NAMES_OF_TORCH}{LOOP}{loop}")
    assert process.num_steps == 2


def test_things_made_anew_in_each_step_share_a_number_in_the_end(tmp_path: Path) -> None:
    process = watch_text(tmp_path, LOOP + ANEW)
    models = {moment.facts.model for moment in process.of(ModelUsed)}
    assert models == set(range(11))
    assert len(process.of(OptimizerStep)) == 60
    assert {moment.facts.optimizer for moment in process.of(OptimizerStep)} == {0}


@pytest.mark.parametrize("work", ["call", "go_back"])
def test_what_another_thread_does_meanwhile_is_no_part_of_a_pass(tmp_path: Path, work: str) -> None:
    process = watch_text(tmp_path, LOOP + TWO_THREADS.replace("WORK", work))
    assert {moment.facts.class_name for moment in process.of(ModelUsed)} == {"First", "Linear"}
    assert len(process.of(ForwardPass)) == len(process.of(BackwardPass)) == 3


def test_a_thread_that_trains_is_observed_though_another_one_has_called_a_model(tmp_path: Path) -> None:
    process = watch_text(tmp_path, LOOP + LATER_THREAD)
    assert len(process.of(BackwardPass)) == len(process.of(OptimizerStep)) == 4
    assert len(process.of(ForwardPass)) == 1 + 3  # all but the one before its first backward pass


def test_a_scheduler_that_steps_others_is_one_moment(tmp_path: Path) -> None:
    process = watch_text(tmp_path, LOOP + SCHEDULED)
    assert [moment.facts.class_name for moment in process.of(SchedulerStep)] == ["SequentialLR"] * 4


COMPANY = """
torch.set_num_threads(1)
torch.manual_seed(0)
other, stop, meet = nn.Linear(3, 3), threading.Event(), threading.Barrier(3)
def go_back(number):
    meet.wait()
    while not stop.is_set():
        x = torch.randn(2, 3, requires_grad=True)
        WORK
def work():
    model = nn.Linear(3, 1)
    for _ in range(4): model(rows).sum().backward(); model.zero_grad()
def second():
    model = nn.Sequential(nn.Linear(3, 1), nn.Tanh())
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(4): optimizer.zero_grad(); model(rows).sum().backward(); optimizer.step()
threads = [threading.Thread(target=go_back, args=(number,)) for number in range(2)]
[thread.start() for thread in threads]
meet.wait()
model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(60):
    loss = (model(rows) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
stop.set()
[thread.join() for thread in threads]
"""
WORKS = {
    "inputs": "(other(x) ** 2).sum().backward(inputs=[x])",
    "model": "work()",
    "optimizer": "second()",
}


@pytest.mark.parametrize("work", WORKS)
def test_other_threads_train_beside_the_one_that_is_observed(tmp_path: Path, work: str) -> None:
    process = watch_text(tmp_path, LOOP + COMPANY.replace("WORK", WORKS[work]), plan=check_plan())
    assert process.switched_off == []
    trainers = {moment.facts.optimizer for moment in process.of(OptimizerStep)}
    assert len(trainers) == 1 or work == "optimizer"
    assert evaluate_rules(find_rules(), Evidence(processes=[process])).findings == []
    assert process.num_steps >= 58 or work == "optimizer"
    assert bool(process.not_checked) == (work == "optimizer")


def test_a_thread_that_trains_is_observed_while_others_go_back(tmp_path: Path) -> None:
    lines = COMPANY.replace("WORK", WORKS["inputs"]).splitlines()
    place = lines.index("model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))")
    rest = [
        "def learn():",
        *(f"    {line}" for line in lines[place:-2]),
        "learner = threading.Thread(target=learn)",
    ]
    rest += ["learner.start()", "learner.join()", *lines[-2:]]
    process = watch_text(tmp_path, LOOP + "\n".join([*lines[:place], *rest]), plan=check_plan())
    assert process.num_steps >= 50  # others may be in a call in the first steps in which it trains
    assert evaluate_rules(find_rules(), Evidence(processes=[process])).findings == []
