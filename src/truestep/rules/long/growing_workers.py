"""The memory of loader workers grows with every batch.

## What it finds
A worker that holds at least 16 MB more after many batches than after its first ones, not counting what it
shares, and the attribute of the dataset that it comes from: a container that grows in the worker, or a large
container of Python objects that the worker only reads.

## Why it matters
Workers are copies of the process and share its memory until they write. Reading a Python object writes its
reference count, so a worker copies a large list page by page. The memory is needed once for each worker, and
jobs are killed after some epochs. A cache in the dataset is filled in each worker separately, and is lost
when the workers end.

## How to fix
Keep what a dataset has many of in one array or tensor: `numpy.array(paths)` instead of a list of strings.
Fill a cache before the workers start, or limit its size.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.watch.evidence.facts.course import Held, WorkerCourse
from truestep.watch.evidence.facts.loading import LoaderUsed

RULE = Meta(
    code="LONG04",
    severity="info",
    needs=(WorkerCourse,),
    fix="Keep many Python objects as one array (numpy.array(paths)); fill a cache before workers start.",
)
_MIN_POINTS, _MIN_BYTES = 3, 16 << 20
_MIN_OBJECTS = 10_000


def is_observed(evidence: Evidence) -> bool:
    """Whether a worker was looked at often enough."""
    return any(len(moment.facts.points) >= _MIN_POINTS for moment in evidence.of(WorkerCourse))


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find workers that grow, once for each loader."""
    used = {moment.facts.loader: moment for moment in reversed(evidence.of(LoaderUsed))}
    worst: dict[int, WorkerCourse] = {}
    for moment in evidence.of(WorkerCourse):
        if len(moment.facts.points) >= _MIN_POINTS:
            known = worst.setdefault(moment.facts.loader, moment.facts)
            if _growth(moment.facts) > _growth(known):
                worst[moment.facts.loader] = moment.facts
    for loader, facts in sorted(worst.items()):
        cause = _cause(facts)
        if _growth(facts) < _MIN_BYTES or cause is None or loader not in used:
            continue
        first, last = facts.points[0], facts.points[-1]
        num_workers = used[loader].facts.num_workers
        yield Finding.at(
            used[loader],
            f"memory of loader workers grows: {cause}",
            evidence=f"a worker holds {first.own_bytes / 1e6:,.0f} MB after {first.num_batches} batches and "
            f"{last.own_bytes / 1e6:,.0f} MB after {last.num_batches}",
            cost=f"{_growth(facts) / 1e6:,.0f} MB in each of {num_workers} workers so far",
        )


def _growth(facts: WorkerCourse) -> int:
    return facts.points[-1].own_bytes - facts.points[0].own_bytes


def _cause(facts: WorkerCourse) -> str | None:
    """Return the attribute that the memory belongs to; None if it is not known."""
    before = {item.name: item.length for item in facts.points[0].held}
    grown = [item for item in facts.points[-1].held if item.length > 1.5 * before.get(item.name, 0)]
    if grown:
        most = max(grown, key=lambda item: item.length - before.get(item.name, 0))
        return f"{facts.dataset}.{most.name} has {before.get(most.name, 0):,} and later {most.length:,} items"
    large = [item for item in facts.points[-1].held if item.length >= _MIN_OBJECTS]
    if not large:
        return None
    most = max(large, key=lambda item: item.length)
    return f"each copies {facts.dataset}.{most.name}, {_words(most)} of Python objects, by reading it"


def _words(held: Held) -> str:
    kind = "an array" if held.kind == "array of objects" else f"a {held.kind}"
    return f"{kind} with {held.length:,} items"


BUGGY = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Names(Dataset):
    def __init__(self):
        self.names = [f"sample {index} {'x' * 40}" for index in range(400_000)]

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        return torch.full((8,), len(self.names[index]) / 50)

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
loader = DataLoader(Names(), batch_size=512, shuffle=True, num_workers=2)
for x in loader:  # expect: LONG04
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

CLEAN = """
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Names(Dataset):
    def __init__(self):
        self.names = np.array([f"sample {index} {'x' * 40}" for index in range(400_000)])

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        return torch.full((8,), len(self.names[index]) / 50)

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
loader = DataLoader(Names(), batch_size=512, shuffle=True, num_workers=2)
for x in loader:
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
