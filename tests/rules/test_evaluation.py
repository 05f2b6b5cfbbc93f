"""Mistakes in the loss of an evaluation, and in the transforms of its data, at the lines that make them."""

import pytest

from tests.gathering import run_text
from truestep.rules import Finding, find_rules
from truestep.rules.evidence import Source

RULES = {rule.meta.code: rule for rule in find_rules()}
SCORED = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(96, 8)
y = x[:, :4].argmax(1)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(TensorDataset(x[:64], y[:64]), 16, shuffle=True)
test_loader = DataLoader(TensorDataset(x[64:], y[64:]), 16)
for epoch in range(2):
    model.train()
    for data, target in loader:
        optimizer.zero_grad()
        criterion(model(data), target).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for data, target in test_loader:
            scores = model(data)
            print(LOSS.item())
"""


def line_of(text: str, what: str) -> int:
    return text[: text.index(what)].count("\n") + 1


def run(code: str, text: str) -> list[Finding]:
    return list(RULES[code].check(run_text(text).evidence))


@pytest.mark.parametrize(
    ("code", "loss"),
    [
        ("LOSS01", "criterion(scores.softmax(1), target)"),
        ("LOSS01", "F.nll_loss(scores, target)"),
        ("LOSS02", "F.binary_cross_entropy_with_logits(scores.sigmoid(), F.one_hot(target, 4).float())"),
        ("LOSS12", "criterion(scores.relu(), target)"),
        ("DATA14", "criterion(scores, target.roll(1, 0))"),
    ],
)
def test_a_wrong_loss_is_found_in_an_evaluation(code: str, loss: str) -> None:
    text = SCORED.replace("LOSS", loss)
    assert {item.line for item in run(code, text)} == {line_of(text, "print(")}
    assert run(code, SCORED.replace("LOSS", "criterion(scores, target)")) == []


def test_one_of_two_softmaxes_before_a_loss_is_not_removed_alone() -> None:
    text = SCORED.replace("LOSS", "criterion(scores.softmax(1).softmax(1), target)")
    found, make_edits = run("LOSS01", text)[0], RULES["LOSS01"].make_edits
    assert "after one more" in found.evidence
    assert make_edits is not None
    assert make_edits(Source("train.py", text), found) == []


def test_averaged_probabilities_and_labels_in_another_order_beside_those_in_order_are_spared() -> None:
    mean = "F.nll_loss((scores.softmax(1) + model(data + 0.1).softmax(1)).div(2).log(), target)"
    assert run("LOSS01", SCORED.replace("LOSS", mean)) == []
    chance = "(criterion(scores, target) - criterion(scores, target.roll(1, 0)))"  # better than chance?
    assert run("DATA14", SCORED.replace("LOSS", chance)) == []


SETS = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Pictures(Dataset):
    def __init__(self, seed, transform):
        draw = torch.Generator().manual_seed(seed)
        self.images = torch.randint(0, 256, (64, 1, 8, 8), generator=draw, dtype=torch.uint8)
        self.transform = transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        return self.transform(image), int(image.float().mean() > 127)

def scale(image):
    return image.float() / 255

def add_random_noise(image):
    return scale(image) + 0.3 * torch.randn(image.shape)

torch.manual_seed(0)
train_transform = TRAIN
train_set = Pictures(0, transform=train_transform)
test_set = Pictures(1, transform=TEST)
train_loader = DataLoader(train_set, 16, shuffle=True)
test_loader = DataLoader(dataset=test_set, batch_size=16)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for epoch in range(3):
    model.train()
    for x, y in train_loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.eval()
    for x, y in test_loader:
        print((model(x).argmax(1) == y).float().mean().item())
"""


@pytest.mark.parametrize(
    ("code", "train", "test", "at"),
    [
        ("DATA06", "scale", "(lambda image: add_random_noise(image))", "test_set ="),
        ("DATA07", "(lambda image: image.float())", "(lambda image: image.float())", "train_transform ="),
        ("DATA16", "scale", "(lambda image: image.float())", "test_set ="),
    ],
)
def test_the_transform_is_named_that_the_dataset_is_given(code: str, train: str, test: str, at: str) -> None:
    text = SETS.replace("TRAIN", train).replace("TEST", test)
    assert [item.line for item in run(code, text)] == [line_of(text, at)]
    assert run(code, SETS.replace("TRAIN", "scale").replace("TEST", "scale")) == []


def test_inputs_of_another_scale_are_found_behind_an_evaluation_of_the_training_data() -> None:
    text = SCORED.replace("torch.randn(96, 8)", "torch.randint(0, 200, (256, 64)) / 255")
    text = (
        text.replace("nn.Linear(8, 16)", "nn.Linear(64, 16)").replace("64]", "192]").replace("[64:", "[192:")
    )
    text = text.replace("target in test_loader:", "target in [*loader, *test_loader]:")
    text = text.replace("LOSS", "scores.mean()")
    raw = text.replace("TensorDataset(x[192:]", "TensorDataset(255 * x[192:]")
    assert len(run("DATA16", raw)) == 1
    assert run("DATA16", text) == []
