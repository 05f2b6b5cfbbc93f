"""Training data in their stored order are found in the first epoch, if a loop goes through them again."""

import pytest

from tests.gathering import run_text
from truestep.rules import Finding, find_rules
from truestep.watch.evidence.facts.loading import LoaderMade, LoaderOrder

RULES = {rule.meta.code: rule for rule in find_rules()}

START = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(96, 4)
data = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()


"""

MADE = "loader = DataLoader(data, 16)\n"
CALLED = MADE + "for epoch in range(1):\n    train(loader)\n"
AROUND = (
    MADE
    + """for epoch in range(1):
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
"""
)
ONCE = MADE + "train(loader)\n"
ANEW = "for fold in range(1):\n    loader = DataLoader(data, 16)\n    train(loader)\n"
TWICE = MADE + "train(loader)\nif x is None:\n    train(loader)\n"


def found_in(text: str) -> list[Finding]:
    ran = run_text(START + text)
    assert ran.code == 0, ran.output
    return list(RULES["DATA03"].check(ran.evidence))


BESIDE = CALLED.replace("    train(loader)", "    model.train()\n    train(loader)")


@pytest.mark.parametrize("text", [CALLED, AROUND, BESIDE], ids=["called", "around", "beside"])
def test_one_epoch_in_a_loop_is_enough(text: str) -> None:
    line = (START + text).split("\n").index(MADE.strip()) + 1
    assert [(item.line, item.severity) for item in found_in(text)] == [(line, "warning")]
    assert found_in(text.replace("16)", "16, shuffle=True)")) == []


@pytest.mark.parametrize("text", [ONCE, ANEW, TWICE], ids=["once", "anew", "twice"])
def test_data_that_are_gone_through_once_need_no_shuffling(text: str) -> None:
    assert found_in(text) == []


RECURRENT = """
rows = torch.randn(96, 5, 4)
read, out = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 3)
optimizer = torch.optim.SGD([*read.parameters(), *out.parameters()], lr=0.01)
loader = DataLoader(TensorDataset(rows, TARGET), 16)
for epoch in range(2):
    for given, target in loader:
        optimizer.zero_grad()
        LOSS.backward()
        optimizer.step()
"""


def test_sequences_with_one_class_each_are_shuffled_and_those_that_may_follow_each_other_are_not() -> None:
    one = RECURRENT.replace("TARGET", "torch.randint(3, (96,))")
    one = one.replace("LOSS", "nn.functional.cross_entropy(out(read(given)[0][:, -1]), target)")
    assert len(found_in(one)) == 1
    each = RECURRENT.replace("TARGET", "torch.randint(3, (96, 5))")
    each = each.replace(
        "LOSS", "nn.functional.cross_entropy(out(read(given)[0]).flatten(0, 1), target.flatten())"
    )
    assert found_in(each) == []


def test_a_dataset_that_draws_its_samples_has_no_stored_order() -> None:
    text = """
class Pairs(torch.utils.data.Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, place):
        other = int(torch.randint(96, ()))
        return x[other], x[other].sum(0, keepdim=True)


loader = DataLoader(Pairs(), 16)
for epoch in range(2):
    train(loader)
"""
    assert found_in(text) == []
    assert len(found_in(text.replace("other = int(torch.randint(96, ()))", "other = place"))) == 1


BATCHES = """
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, WeightedRandomSampler
loader = DataLoader(data, batch_sampler=BatchSampler({}, 16, drop_last=False))
for epoch in range(2):
    train(loader)
"""
WEIGHTED = "WeightedRandomSampler(torch.ones(96), 96)"
SUBSET = "torch.utils.data.SubsetRandomSampler(range(0, 96, 2))"


@pytest.mark.parametrize("sampler", ["RandomSampler(data)", WEIGHTED, SUBSET])
def test_a_batch_sampler_that_shuffles_is_believed(sampler: str) -> None:
    assert found_in(BATCHES.format(sampler)) == []
    found = found_in(BATCHES.format("SequentialSampler(data)"))
    assert [item.message for item in found] == [
        "every epoch has the same order: the training data are never shuffled"
    ]


def test_what_a_batch_sampler_draws_is_what_is_noted() -> None:
    ran = run_text(START + BATCHES.format("RandomSampler(data)"))
    (made,) = (moment.facts for moment in ran.evidence.of(LoaderMade))
    assert made.is_random and not made.is_ordered
    ran = run_text(START + BATCHES.format(SUBSET))
    first = ran.evidence.of(LoaderOrder)[0].facts
    assert first.indices == [*range(0, 96, 2)]
