"""Steps of scripts that update their weights themselves are counted and checked."""

from pathlib import Path

import pytest

from tests.gathering import judged

START = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(320, 6)
y = x[:, :1] * 2
"""

MODULE = (
    START
    + """
model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))
for epoch in range(3):
    model.train()
    for i in range(0, 256, 32):
        ZERO
        loss = (model(x[i:i + 32]) - y[i:i + 32]).pow(2).mean()
        loss.backward()
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-0.01)
    MODE
    with torch.no_grad():
        total = sum((model(x[i:i + 16]) - y[i:i + 16]).pow(2).mean().item() for i in range(256, 320, 16))
    print(total)
"""
)

RAW = (
    START
    + """
first, second = [(torch.randn(*shape) * 0.3).requires_grad_() for shape in ((6, 8), (8, 1))]
for step in range(30):
    for half in range(2):
        rows = torch.randperm(320)[:32]
        loss = ((x[rows] @ first).clamp(min=0) @ second - y[rows]).pow(2).mean() / 2
        loss.backward()
    with torch.no_grad():
        for weight in (first, second):
            weight -= 0.05 * weight.grad
            ZERO
"""
)

CLASS = (
    START
    + """
class Descent:
    def __init__(self, parameters):
        self.parameters = list(parameters)

    def step(self):
        for item in self.parameters:
            item.data = item.data - 0.1 * item.grad


model = nn.Linear(6, 1)
optimizer = Descent(model.parameters())
for _ in range(30):
    ZERO
    (model(x) - y).square().mean().backward()
    optimizer.step()
"""
)

GAN = (
    START
    + """
made, judge = [nn.Sequential(nn.Linear(a, 16), nn.ReLU(), nn.Linear(16, b)) for a, b in ((4, 6), (6, 1))]
score = nn.BCEWithLogitsLoss()


def update(net):
    with torch.no_grad():
        for p in net.parameters():
            p -= 0.05 * p.grad


for step in range(30):
    judge.zero_grad()
    drawn = made(torch.randn(32, 4))
    real = score(judge(x[:32]), torch.ones(32, 1))
    (real + score(judge(drawn.detach()), torch.zeros(32, 1))).backward()
    update(judge)
    ZERO
    score(judge(drawn), torch.ones(32, 1)).backward()
    update(made)
"""
)

OWN = (
    START
    + """
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(6):
    optimizer.zero_grad()
    (model(x) - y).square().mean().backward()
    with torch.no_grad():
        model.weight.mul_(0.99)
    model(x)
    optimizer.step()
"""
)

ATTACK = (
    START
    + """
model = nn.Linear(6, 3).requires_grad_(False)
x.requires_grad_()
for step in range(6):
    model(x).logsumexp(1).sum().backward()
    x.grad = None
"""
)


def run(tmp_path: Path, text: str, *, steps: int | None = None, **words: str) -> tuple[list[int], set[str]]:
    """Return how many steps each process made, and what was found."""
    for name, word in words.items():
        text = text.replace(name, word)
    script = tmp_path / "train.py"
    script.write_text(text)
    ran, evaluation = judged(script, steps=steps)
    assert ran.code == 0, ran.output
    found = {item.rule.meta.code for item in evaluation.findings if item.severity != "info"}
    return [process.num_steps for process in ran.evidence.processes], found


@pytest.mark.parametrize(
    ("text", "zero", "num_steps"),
    [
        (MODULE, "model.zero_grad()", 24),
        (RAW, "weight.grad = None", 30),
        (RAW, "weight.grad.zero_()", 30),
        (CLASS, "model.zero_grad()", 30),
        (GAN, "made.zero_grad()", 30),
        (OWN, "", 6),
        (ATTACK, "", 0),
    ],
    ids=["module", "raw", "raw-zero", "class", "gan", "optimizer", "attack"],
)
def test_steps_are_counted_and_nothing_is_found_in_correct_scripts(
    tmp_path: Path, text: str, zero: str, num_steps: int
) -> None:
    assert run(tmp_path, text, ZERO=zero, MODE="model.eval()") == ([num_steps], set())


@pytest.mark.parametrize("text", [MODULE, RAW, CLASS], ids=["module", "raw", "class"])
def test_gradients_that_are_never_zeroed_are_found(tmp_path: Path, text: str) -> None:
    assert "LOOP01" in run(tmp_path, text, ZERO="pass", MODE="model.eval()")[1]


def test_an_evaluation_in_train_mode_is_found(tmp_path: Path) -> None:
    assert run(tmp_path, MODULE, ZERO="model.zero_grad()", MODE="pass")[1] == {"MODE01"}


def test_steps_by_hand_end_a_script_that_is_limited(tmp_path: Path) -> None:
    assert run(tmp_path, MODULE, steps=5, ZERO="model.zero_grad()", MODE="model.eval()")[0] == [5]
