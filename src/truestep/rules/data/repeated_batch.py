"""Every step trains on the same batch of a loader that has more.

## What it finds
A training loader that is started over for every step, of which only the first batch is used, and whose
first batch is always the same: `next(iter(loader))` in the loop, without shuffling.

## Why it matters
The model is trained on one batch. The loss falls, because that batch is learned by heart; all other samples
are never used.

## How to fix
Loop over the loader, or keep one iterator: `batches = iter(loader)` before the loop and `next(batches)` in
it.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.analysis.loaders import ObservedLoader, find_loaders
from truestep.watch.evidence.facts.loading import LoaderUsed
from truestep.watch.evidence.facts.passes import BackwardPass

RULE = Meta(
    code="DATA08",
    severity="error",
    needs=(LoaderUsed, BackwardPass),
    fix="Loop over the loader, or make the iterator once before the loop: batches = iter(loader).",
    is_preview=True,
)
_LEAST_EPOCHS = 5


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find loaders of which only the first batch is ever used."""
    lengths = {moment.facts.loader: moment.facts.length for moment in evidence.of(LoaderUsed)}
    for loader in find_loaders(evidence):
        length, num_epochs = lengths.get(loader.number), len(loader.epochs)
        if length is None or length < 2 or num_epochs < _LEAST_EPOCHS or loader.facts.is_iterable:
            continue
        is_first_only = len(loader.batches) == num_epochs and len(loader.trained_epochs) == num_epochs
        if is_first_only and _has_one_batch(loader):
            samples = loader.samples[0]
            yield Finding.at(
                loader.epochs[1],
                "every step trains on the same batch: the loader starts over each time",
                evidence=f"{num_epochs} steps started the loader over and took 1 of its {length} batches; "
                f"the {len(samples.digests[0])} samples were the same each time, "
                f"expected {length} different batches",
                count=num_epochs,
            )


def _has_one_batch(loader: ObservedLoader) -> bool:
    """Whether the first epochs, of which digests are known, gave one batch with the same samples."""
    pages = [page.digests for page in loader.samples]
    return len(pages) > 1 and bool(pages[0]) and all(page == pages[0] for page in pages)


BUGGY = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(256, 6)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=32)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(8):
    inputs, targets = next(iter(loader))  # expect: DATA08
    loss = nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

CLEAN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(256, 6)
data = TensorDataset(x[:192], x[:192].sum(1, keepdim=True))
held_out = TensorDataset(x[192:], x[192:].sum(1, keepdim=True))
loader = DataLoader(data, batch_size=32, shuffle=True)
validation = DataLoader(held_out, batch_size=32)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(8):
    inputs, targets = next(iter(loader))
    loss = nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        inputs, targets = next(iter(validation))
        print(nn.functional.mse_loss(model(inputs), targets).item())
    model.train()
"""

FIXED = BUGGY.replace("for step in range(8):\n", "batches = iter(loader)\nfor step in range(8):\n").replace(
    "next(iter(loader))", "next(batches)"
)
