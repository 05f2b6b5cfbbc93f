"""Right scripts that look like a mistake are let be; with the mistake in them, they are told."""

import textwrap
from typing import Any

import pytest

from tests.gathering import run_text
from tests.rule_examples import buggy
from truestep.rules import Evidence, Finding, find_rules
from truestep.watch import Facts, Moment, Process
from truestep.watch.evidence.facts.passes import BackwardPass
from truestep.watch.evidence.facts.structure import CheckpointLoaded, OptimizerNotResumed

RULES = {rule.meta.code: rule for rule in find_rules()}
FILE = "/project/train.py"


BACKWARD = BackwardPass("backward")


def seen(facts: Facts, line: int | None = 1, *, step: int = 0) -> Moment[Any]:
    return Moment(facts=facts, step=step, at_s=0.0, took_s=0.0, file=FILE, line=line, function="")


def read(code: str, text: str, *moments: Moment[Any]) -> list[Finding]:
    """Return what a rule finds in a source of which only these moments are known."""
    text = textwrap.dedent(text).lstrip("\n")
    process = Process(pid=1, argv=[], moments=list(moments))
    return list(RULES[code].check(Evidence(processes=[process], texts={FILE: text})))


def run(code: str, text: str) -> list[Finding]:
    """Return what a rule finds in a script that is run."""
    found = run_text("import torch\nimport torch.nn.functional as F\nfrom torch import nn\n" + text)
    assert found.code == 0, found.output
    return list(RULES[code].check(found.evidence))


def line_of(text: str, part: str) -> int:
    lines = textwrap.dedent(text).lstrip("\n").splitlines()
    return next(number for number, line in enumerate(lines, start=1) if part in line)


DQN = """
class Agent:
    def __init__(self, policy, target):
        self.policy, self.target = None, None
        self.policy = policy
        self.target = target

    def loss(self, x):
        value = self.policy(x).amax(1)
        goal = 1 + 0.9 * self.target(x).amax(1).detach()
        return F.mse_loss(value, goal)


torch.manual_seed(0)
policy, target = nn.Linear(4, 2), nn.Linear(4, 2)
target.load_state_dict(policy.state_dict())
agent = Agent(policy, target)
optimizer = torch.optim.SGD(policy.parameters(), lr=0.05)
for step in range(4):
    optimizer.zero_grad()
    agent.loss(torch.randn(8, 4)).backward()
    optimizer.step()
"""


def test_a_target_that_no_optimizer_trains_is_no_alias() -> None:
    assert run("PAR13", DQN) == []
    assert run("PAR13", DQN.replace("Agent(policy, target)", "Agent(policy, policy)"))


def test_a_teacher_that_learns_too_is_no_alias() -> None:
    assert (
        run("PAR13", DQN.replace("policy.parameters()", "[*policy.parameters(), *target.parameters()]")) == []
    )


WGAN = """
from torch.utils.data import DataLoader

torch.manual_seed(0)
loader = DataLoader(torch.randn(64, 4), batch_size=8, shuffle=True)
maker = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
critic = nn.Linear(4, 1)
optimizer = torch.optim.SGD(critic.parameters(), lr=0.01)
other = torch.optim.SGD(maker.parameters(), lr=0.01)
for step in range(8):
    real = next(iter(loader))
    fake = maker(torch.randn(8, 2)).detach()
    optimizer.zero_grad()
    (critic(fake).mean() - critic(real).mean()).backward()
    optimizer.step()
    if step % 4 == 3:
        other.zero_grad()
        (-critic(maker(torch.randn(8, 2))).mean()).backward()
        other.step()
"""


@pytest.mark.parametrize("code", ["MODE01", "MODE02"])
def test_a_loader_that_gives_one_batch_for_each_step_is_trained_on(code: str) -> None:
    assert run(code, WGAN) == []


CLIPPED = """
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
parts = [layer.parameters() for layer in model]
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    for number, layer in enumerate(model):
        nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    optimizer.step()
"""


def test_layers_without_parameters_may_be_clipped_among_others() -> None:
    assert run("LOOP08", CLIPPED) == []
    assert run("LOOP08", CLIPPED.replace("layer.parameters(), 1.0", "parts[number], 1.0"))


SCHEDULED = """
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
loss = torch.tensor(9.0)
for epoch in range(4):
    scheduler.step(loss.detach())
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
"""


def test_a_scheduler_that_is_told_where_it_stands_may_come_first() -> None:
    stepped = SCHEDULED.replace("ReduceLROnPlateau(optimizer)", "StepLR(optimizer, 2)")
    assert run("LOOP10", SCHEDULED) == []
    assert run("LOOP10", stepped.replace("step(loss.detach())", "step(epoch)")) == []
    assert run("LOOP10", stepped.replace("step(loss.detach())", "step()"))


@pytest.mark.parametrize(
    "line",
    [
        'parser.add_argument("--optimizer", choices={"adam", "sgd"})',
        'frame = frame[frame.split.isin({"train", "extra"})]',
        'names = {"q_proj", "v_proj"}\nconfig = LoraConfig(target_modules=names)',
        'self.names = {"bias"}\ngroups = make_groups(model, exempt=self.names)',
    ],
)
def test_a_set_that_is_handed_over_as_it_is_has_no_order(line: str) -> None:
    assert read("REPRO02", line, seen(BACKWARD)) == []


@pytest.mark.parametrize(
    "line",
    [
        'labels = ["red", "blue"]\nids = encode(list(set(labels)))',
        'words = {"red", "blue"}\nids = [number[word] for word in words]\nx = torch.tensor(ids)',
        'numbers = dict.fromkeys({"red", "blue"})\n',
        'words = {"red", "blue"}\nseen.isin(words)\nids = {word: at for at, word in enumerate(words)}',
    ],
)
def test_a_set_whose_items_are_lined_up_is_told(line: str) -> None:
    assert read("REPRO02", line, seen(BACKWARD))


def resumed(key: str) -> list[Finding]:
    checkpoint = CheckpointLoaded(keys=[key, "model"], num_optimizers=0)
    facts = OptimizerNotResumed(0, "AdamW", kept_names=["exp_avg"], checkpoint=checkpoint)
    return read("CKPT02", f'first = state["{key}"]\n', seen(facts))


@pytest.mark.parametrize("key", ["timesteps", "batch_size", "num_steps", "max_epochs", "diffusion_steps"])
def test_a_setting_from_a_checkpoint_is_no_progress(key: str) -> None:
    assert resumed(key) == []


@pytest.mark.parametrize("key", ["epoch", "global_step", "iter_num", "EPOCHS_RUN", "globalStep", "batch_idx"])
def test_a_count_from_a_checkpoint_is_progress(key: str) -> None:
    assert resumed(key)


GRAPH = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.drop, self.out = nn.Linear(8, 8), nn.Dropout(), nn.Linear(8, 4)

    def forward(self, x, edges):
        return self.out(edges @ self.drop(self.first(x).relu()))

torch.manual_seed(0)
x, edges, y = torch.randn(24, 8), torch.eye(24), torch.arange(24) % 4
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

def score(mask):
    model.eval()
    with torch.no_grad():
        return F.cross_entropy(model(x, edges)[mask], y[mask]).item()

for epoch in range(5):
    model.train()
    optimizer.zero_grad()
    F.cross_entropy(model(x, edges)[y < 2], y[y < 2]).backward()
    optimizer.step()
    score(y < 2), score(y == 2)
score(y == 3)
"""


def test_layers_below_a_head_are_forgotten_where_nothing_was_loaded() -> None:
    head = GRAPH.replace("Adam(model.parameters()", "Adam(model.out.parameters()")
    assert run("PAR04", GRAPH) == []
    assert [item.line for item in run("PAR04", head)] == [4 + line_of(head, "Adam(")]
    loaded = "model = Net()\ntorch.save(model.state_dict(), 'm')\nmodel.load_state_dict(torch.load('m'))\n"
    assert run("PAR04", head.replace("model = Net()\n", loaded)) == []


def test_a_whole_graph_is_evaluated_with_the_masks_of_its_parts() -> None:
    assert run("MODE01", GRAPH) == []
    (finding,) = run("MODE01", GRAPH.replace("    model.eval()\n", ""))
    assert finding.line == 2 + line_of(GRAPH, "model(x, edges)[mask]")
    assert finding.details["called"] == finding.line + 1


def test_a_loss_of_some_rows_is_looked_through() -> None:
    assert run("LOSS01", GRAPH) == []
    twice = GRAPH.replace("F.cross_entropy(model(x, edges)[y < 2]", "F.nll_loss(model(x, edges)[y < 2]")
    assert run("LOSS01", twice)[0].line == 4 + line_of(twice, "F.nll_loss")


SEVERED = """
class Letters(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(8, 4), nn.LSTM(4, 4, batch_first=True)

    def forward(self, x):
        return self.lstm(self.embedding(x))[1][0].squeeze(0)

class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters, self.out = Letters(), nn.Linear(4, 2)

    def forward(self, x):
        return self.out(self.letters(x).data)

torch.manual_seed(0)
model = Tagger()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(5):
    optimizer.zero_grad()
    F.cross_entropy(model(torch.randint(8, (6, 5))), torch.randint(2, (6,))).backward()
    optimizer.step()
"""


def test_one_cut_is_one_finding() -> None:
    (finding,) = run("PAR06", SEVERED)
    assert finding.line == 4 + line_of(SEVERED, ".data")
    assert "embedding, lstm" in finding.message


@pytest.mark.parametrize(
    ("optimizer", "clip", "cost"),
    [("SGD", "", "steps are 4"), ("Adam", "", None), ("Adam", "clip_grad_norm_", "clipped")],
)
def test_no_cost_is_claimed_that_the_optimizer_does_not_have(
    optimizer: str, clip: str, cost: str | None
) -> None:
    text = buggy("LOOP03").replace("SGD", optimizer)
    if clip:
        text = text.replace(
            "    optimizer.step()", f"    nn.utils.{clip}(model.parameters(), 1)\n    optimizer.step()"
        )
    (finding,) = run("LOOP03", text)
    assert finding.cost is None if cost is None else cost in (finding.cost or "")


SHARED = """
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.manual_seed(0)
y = torch.arange(4).repeat_interleave(16)
x = torch.randn(64, 4) + y.unsqueeze(1)
loader = DataLoader(TensorDataset(x, y), batch_size=8, sampler=SAMPLER)
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
next(iter(loader))
for epoch in range(EPOCHS):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        for x, y in loader:
            model(x)
"""


def test_a_training_loader_that_is_also_scored_stays_one() -> None:
    assert run("DATA04", SHARED.replace("SAMPLER", "None").replace("EPOCHS", "1"))
    shuffled = SHARED.replace("SAMPLER", "DistributedSampler(y, num_replicas=1, rank=0)")
    assert run("DATA03", shuffled.replace("EPOCHS", "2"))
    assert run("DATA03", shuffled.replace("EPOCHS", "1")) == []
    told = shuffled.replace(
        "    for x, y in loader:", "    loader.sampler.set_epoch(epoch)\n    for x, y in loader:", 1
    )
    assert run("DATA03", told.replace("EPOCHS", "2")) == []


def test_noise_is_found_in_a_set_that_is_evaluated_once() -> None:
    once = buggy("DATA06").replace("range(2)", "range(1)")
    assert [item.line for item in run("DATA06", once)] == [3 + line_of(once, "val_loader = ")]
    assert run("DATA06", once.replace("y[48:], 0.1)", "y[48:], 0.0)")) == []


def test_steps_as_large_as_the_weights_are_a_warning_if_the_loss_does_not_fall() -> None:
    script = buggy("PROBE07").replace("range(6)", "range(80)")
    (small,) = run("PROBE07", script.replace("lr=1.0", "lr=0.2"))
    (large,) = run("PROBE07", script.replace("lr=1.0", "lr=100.0"))
    assert (small.severity, large.severity) == (None, "warning")


WRAPPED = """
import os, tempfile
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
with tempfile.TemporaryDirectory() as folder:
    store = "file://" + os.path.join(folder, "store")
    dist.init_process_group("gloo", init_method=store, world_size=1, rank=0)
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(4):
        loss = CALL.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()
"""


def test_a_wrapper_whose_forward_is_called_averages_gradients() -> None:
    assert run("DIST01", WRAPPED.replace("CALL", "model.forward(torch.randn(8, 4))")) == []
    assert len(run("DIST01", WRAPPED.replace("CALL", "model.module(torch.randn(8, 4))"))) == 4


CLIPPED_LATE = """
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(NUM):
    loss = model(torch.ones(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
"""


@pytest.mark.parametrize("num", [40, 300])
def test_clipping_after_the_step_is_found_however_long_the_run(num: int) -> None:
    (found,) = run("LOOP05", CLIPPED_LATE.replace("NUM", str(num)))
    assert found.message == "gradients are clipped after the step that applies them"
