"""A sampler and a dataset for other loaders and frameworks: order and draws follow from the seed alone.

Owns which number a sample has in which epoch. Position is arithmetic and draws belong to samples, so that a
resumed run, with any number of workers, reads what the run that was not killed reads.
"""

import random
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from torch.utils.data import Dataset, Sampler

from truestep.base import rng
from truestep.errors import StateError, UsageError
from truestep.run.data.permutation import Order

_WORDS = 2**32
"""How many seeds NumPy's global generator takes."""


class SeededOrder(Sampler[int]):
    """Every epoch in another order, by seed and epoch; `skip` continues in the middle of one.

    torchdata's `StatefulDataLoader` saves and restores the position itself, with no call of `skip`.

    Each iteration is the next epoch. What it yields is `epoch * size + index`: give the loader
    `SeededSamples` as its dataset, which knows both from it.

    >>> order = SeededOrder(5, seed=7)
    >>> whole = [*order, *order]
    >>> order.skip(batches=3, batch_size=2)  # an epoch has 3 batches
    >>> [*order] == whole[5:]
    True
    """

    def __init__(self, size: int, *, seed: int) -> None:
        if size < 1:
            raise UsageError(f"an order needs at least one sample, got size={size}.")
        self._size, self._seed = size, seed
        self._epoch = self._start = 0

    def skip(self, *, batches: int, batch_size: int, drop_last: bool = False) -> None:
        """Continue after this many batches, counted over all epochs."""
        size = self._size // batch_size if drop_last else -(-self._size // batch_size)
        self._epoch, batch = divmod(batches, size)
        self._start = batch * batch_size

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be that of an epoch; `Trainer` of Lightning calls it."""
        self._epoch = epoch

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> "SeededIterator":
        return SeededIterator(self)

    def _begin(self) -> tuple[int, int]:
        """Return the epoch and the place in it at which an iteration begins now; the next one follows it."""
        epoch, start = self._epoch, self._start
        self._epoch, self._start = epoch + 1, 0
        return epoch, start

    def _restart(self, epoch: int, start: int) -> None:
        self._epoch, self._start = epoch, start


class SeededIterator(Iterator[int]):
    """One epoch of a `SeededOrder`. Its state is what torchdata's `StatefulDataLoader` saves and loads.

    It belongs to the epoch that the order stands at when the first number is drawn.
    """

    def __init__(self, order: SeededOrder) -> None:
        self._order = order
        self._numbers: Order | None = None
        self._epoch = self._place = 0

    def __next__(self) -> int:
        order = self._order
        if self._numbers is None:
            self._epoch, self._place = order._begin()
            self._numbers = Order(order._size, seed=order._seed, epoch=self._epoch)
        place = self._place
        if place >= order._size:
            raise StopIteration
        self._place = place + 1
        return self._epoch * order._size + self._numbers.indices(place, place + 1)[0]

    def state_dict(self) -> dict[str, int]:
        """Return where the iteration stands, and what the order depends on."""
        order = self._order
        begun = self._numbers is not None
        epoch, place = (self._epoch, self._place) if begun else (order._epoch, order._start)
        return {"epoch": epoch, "place": place, "size": order._size, "seed": order._seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue where another iteration stood; the epochs after it follow."""
        order = self._order
        if (state["size"], state["seed"]) != (order._size, order._seed):
            raise StateError(
                f"this position was saved in an order of {state['size']} samples with seed {state['seed']}, "
                f"and this SeededOrder has {order._size} with seed {order._seed}. Make it with the same ones."
            )
        order._restart(state["epoch"], state["place"])
        self._numbers = None


class SeededSamples(Dataset[Any]):
    """A dataset whose samples draw from generators that are seeded for each of them, in any worker.

    The seed follows from `seed`, the epoch and the index. The global generators of torch, NumPy and `random`
    are as before afterwards. With a sampler other than `SeededOrder`, call `set_epoch` before each epoch.

    >>> samples = SeededSamples([1, 2, 3], seed=7)
    >>> samples[1], len(samples)
    (2, 3)
    """

    def __init__(self, dataset: Any, *, seed: int) -> None:
        self.dataset = dataset
        self._seed = seed
        self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()  # workers that live on see it change

    def set_epoch(self, epoch: int) -> None:
        """Let the samples be those of an epoch."""
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, number: int) -> Any:
        epochs, index = divmod(int(number), len(self.dataset))
        # bits: draws belong to the epoch and the sample, not to the process or the worker.
        seed = rng.derive(self._seed, "sample", epochs + int(self._epoch), index)
        kept = torch.get_rng_state(), numpy.random.get_state(), random.getstate()
        try:
            torch.default_generator.manual_seed(seed)  # samples are made on the CPU
            numpy.random.seed(seed % _WORDS)
            random.seed(seed)
            return self.dataset[index]
        finally:
            torch.set_rng_state(kept[0])
            numpy.random.set_state(kept[1])
            random.setstate(kept[2])
