"""Order and draws for other loaders: the same after any number of batches, with any number of workers."""

import itertools
import random
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

from truestep.errors import StateError
from truestep.run.data import SeededOrder, SeededSamples

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it


class Drawing(Dataset[tuple[int, float, float, float]]):
    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> tuple[int, float, float, float]:
        return index, float(torch.rand(())), float(numpy.random.rand()), random.random()


def batches(*, workers: int, skipped: int = 0, num_epochs: int = 3) -> list[str]:
    order = SeededOrder(11, seed=3)
    order.skip(batches=skipped, batch_size=4)
    loader = DataLoader(
        SeededSamples(Drawing(), seed=3),
        sampler=order,
        batch_size=4,
        num_workers=workers,
        persistent_workers=workers > 1,
    )
    return [str(batch) for _ in range(num_epochs) for batch in loader]


@pytest.mark.parametrize("skipped", [1, 3, 5])
def test_the_rest_of_a_training_is_the_same_after_a_skip(skipped: int) -> None:
    whole = batches(workers=0)
    assert len(set(whole)) == len(whole) == 9
    assert batches(workers=0, skipped=skipped)[: 9 - skipped] == whole[skipped:]


@pytest.mark.slow
def test_workers_change_nothing() -> None:
    assert batches(workers=2, skipped=4, num_epochs=1) == batches(workers=0)[4:6]
    assert batches(workers=2) == batches(workers=1) == batches(workers=0)


def test_an_epoch_has_every_sample_once_and_incomplete_batches_may_be_dropped() -> None:
    order = SeededOrder(11, seed=3)
    whole = [*order, *order]
    assert sorted(number % 11 for number in whole[:11]) == list(range(11)) != [n % 11 for n in whole[:11]]
    order.skip(batches=3, batch_size=4, drop_last=True)  # 2 in an epoch
    assert list(order) == whole[15:]


def stateful(workers: int, seed: int = 3) -> Any:
    return StatefulDataLoader(
        SeededSamples(Drawing(), seed=3),
        sampler=SeededOrder(11, seed=seed),
        batch_size=4,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
    )


@pytest.mark.parametrize(
    ("saved_in", "loaded_in"), [(0, 0), pytest.param(2, 2, marks=pytest.mark.slow)], ids=str
)
def test_a_stateful_loader_resumes_in_any_batch_of_any_epoch(saved_in: int, loaded_in: int) -> None:
    whole = batches(workers=0, num_epochs=4)
    for epoch, batch in itertools.product(range(3), range(4)):
        loader = stateful(saved_in)
        for _ in range(epoch):
            list(loader)
        place = iter(loader)
        found = [next(place, None) for _ in range(batch)]  # the last one ends the epoch
        state = loader.state_dict()
        num_seen = epoch * 3 + sum(item is not None for item in found)
        resumed = stateful(loaded_in)
        resumed.load_state_dict(state)
        rest = [str(item) for _ in range(4) for item in resumed]
        assert rest[: 12 - num_seen] == whole[num_seen:], (epoch, batch)


def test_a_position_in_another_order_is_refused() -> None:
    loader = stateful(0)
    next(iter(loader))
    other = stateful(0, seed=4)
    other.load_state_dict(loader.state_dict())
    with pytest.raises(StateError, match="with seed 3, and this SeededOrder has 11 with seed 4"):
        next(iter(other))


def test_samples_leave_the_global_generators_as_they_were() -> None:
    samples = SeededSamples(Drawing(), seed=3)
    before = torch.get_rng_state(), repr(numpy.random.get_state()), random.getstate()
    first = samples[4]
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (repr(numpy.random.get_state()), random.getstate())
    assert samples[4] == first
    samples.set_epoch(1)
    assert samples[4] != first
    assert samples[4] == SeededSamples(Drawing(), seed=3)[11 + 4]
