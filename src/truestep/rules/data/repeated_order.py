"""A distributed sampler shuffles every epoch into the same order.

## What it finds
A training loader with a shuffling `DistributedSampler` whose `epoch` is the same in every epoch.

## Why it matters
`DistributedSampler` shuffles by its seed and its epoch number, so that all processes agree. If nobody tells
it the epoch, every epoch has the order of the first: the same batches, in the same sequence, for the whole
training.

## How to fix
Call `sampler.set_epoch(epoch)` at the beginning of each epoch.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.loaders import Loader, find_loaders

RULE = Meta(
    code="DATA03",
    severity="error",
    needs=("order",),
    fix="Call sampler.set_epoch(epoch) before iterating the loader, in every epoch.",
)


def is_observed(evidence: Evidence) -> bool:
    """Whether a loader with such a sampler was iterated more than once."""
    return any(len(_epochs(loader)) > 1 for loader in find_loaders(evidence))


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find epochs with one number."""
    for loader in find_loaders(evidence):
        numbers = _epochs(loader)
        if loader.is_training and len(numbers) > 1 and len(set(numbers)) == 1:
            yield Finding.at(
                loader.epochs[1],
                "every epoch has the same order: set_epoch() is never called on the distributed sampler",
                evidence=f"{len(loader.epochs)} epochs; in each of the first {len(numbers)} the "
                f"sampler's epoch was {numbers[0]}",
            )


def _epochs(loader: Loader) -> list[int]:
    told = [moment.value.get("distributed") for moment in loader.orders]
    return [item[1] for item in told if item is not None and item[0]]


BUGGY = """
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.manual_seed(0)
x = torch.randn(32, 4)
data = TensorDataset(x, x.sum(1))
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, num_replicas=1, rank=0))
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    for x, y in loader:  # expect: DATA03
        loss = (model(x).squeeze(1) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

CLEAN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.manual_seed(0)
x = torch.randn(32, 4)
data = TensorDataset(x, x.sum(1))
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, num_replicas=1, rank=0))
test = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, num_replicas=1, rank=0, shuffle=False))
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    loader.sampler.set_epoch(epoch)
    for x, y in loader:
        loss = (model(x).squeeze(1) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
