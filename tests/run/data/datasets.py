"""Datasets for the tests, in a module of their own so that spawned workers can import them."""

import random
import signal
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from torch.utils.data import Dataset, IterableDataset

from truestep.base.bits import digest_state
from truestep.run.data import Batch, DeliveryPlan


def plan_of(num_steps: int | None = None, **changes: Any) -> DeliveryPlan:
    """A plan of two lanes from step 0 on, unless told otherwise."""
    settings: dict[str, Any] = {
        "seed": 7,
        "num_lanes": 2,
        "first_step": 0,
        "first_epoch": 0,
        "num_epochs": None,
        "num_steps": num_steps,
    } | changes
    settings.setdefault("lanes", range(settings["num_lanes"]))
    settings.setdefault("cursor", settings["first_step"])
    return DeliveryPlan(**settings)


def seen(batch: Batch) -> tuple[Any, ...]:
    """All that a batch says, with the exact bits of its data."""
    lanes = [(lane, num_samples, digest_state(data)) for lane, num_samples, data in batch.lanes]
    return batch.step, batch.epoch, batch.is_epoch_end, batch.num_samples, lanes


def draw(index: int) -> torch.Tensor:
    """The index and one draw from each global generator."""
    drawn = [torch.rand(()).item(), random.random(), numpy.random.rand()]
    return torch.tensor([float(index), *drawn], dtype=torch.float64)


def draw_and_stack(samples: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(samples) + torch.rand((), dtype=torch.float64)


class Noisy(Dataset[torch.Tensor]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> torch.Tensor:
        return draw(index)


class NoisyMany(Noisy):
    def __getitem__(self, index: int) -> torch.Tensor:
        raise AssertionError("__getitems__ is there to be used")

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [draw(index) for index in indices]


class Broken(Noisy):
    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 5:
            raise KeyError("no label")
        return draw(index)


class Signals(Noisy):
    def __getitem__(self, index: int) -> torch.Tensor:
        is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        is_default = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        return torch.tensor([is_ignored, is_default])


class Threads(Noisy):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(torch.get_num_threads())


class Stream(IterableDataset[torch.Tensor]):
    """Begins anew by itself: after the end its position is 0 again."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.position = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.position < self.n:
            self.position += 1
            yield draw(self.position - 1)
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


class StaysAtItsEnd(Stream):
    """Its state after the end is the end: it has to be put back for the next epoch."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.position < self.n:
            self.position += 1
            yield draw(self.position - 1)


class GoesOn(Stream):
    """A long corpus in short epochs: the next epoch continues where the last one stopped."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            self.position += 1
            yield draw(self.position)
            if self.position % self.n == 0:
                return


class ShuffledByEpoch(Stream):
    """Its order depends on the epoch, which is in its state too; it hands out what it goes on changing."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.state = {"epoch": -1, "position": 0}

    def set_epoch(self, epoch: int) -> None:
        self.state["epoch"] = epoch
        self.state["position"] = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        order = numpy.random.default_rng(self.state["epoch"]).permutation(self.n).tolist()
        for index in order[self.state["position"] :]:
            self.state["position"] += 1
            yield draw(index)

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


class EpochNotInState(Stream):
    """Its order depends on the epoch that it was told last; its state is only the position."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[torch.Tensor]:
        order = numpy.random.default_rng(self.epoch).permutation(self.n).tolist()
        for index in order[self.position :]:
            self.position += 1
            yield draw(index)
        self.position = 0


class Endless:
    """No torch base class, and nothing to remember: everything comes from the seeded generators."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield draw(0)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Forgetful(Endless):
    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in range(7):
            yield draw(index)


class CountsTooLate(Stream):
    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.position < self.n:
            yield draw(self.position)
            self.position += 1


class BrokenStream(Stream):
    def __iter__(self) -> Iterator[torch.Tensor]:
        for sample in super().__iter__():
            if sample[0] == 5:
                raise KeyError("no label")
            yield sample
