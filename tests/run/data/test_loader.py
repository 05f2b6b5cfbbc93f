"""The loader over datasets with a length: the same batches for any workers, processes, interruptions."""

import gc
import multiprocessing
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset, default_collate

from tests.run.data.datasets import (
    Broken,
    Noisy,
    NoisyMany,
    Signals,
    Stream,
    Threads,
    draw_and_stack,
    plan_of,
    seen,
)
from truestep.errors import UsageError
from truestep.run.data import Batch, Loader, Permutation, split
from truestep.run.data.fetch import FetchItem, FetchSamples, FetchTensors, fetch_for

WORKERS = [0, 1, 3]


def numbers(batches: Iterator[Batch]) -> list[list[list[Any]]]:
    """The first number of each sample, by step and lane."""
    return [
        [lane.data.reshape(lane.num_samples, -1)[:, 0].tolist() for lane in batch.lanes] for batch in batches
    ]


def wait_for_no_children() -> None:
    deadline = time.monotonic() + 5
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert multiprocessing.active_children() == []


def test_an_epoch_is_cut_into_batches_and_lanes() -> None:
    loader = Loader(torch.arange(10.0).unbind(), batch_size=4, shuffle=False)
    batches = list(loader.feed(plan_of(num_epochs=2)))
    assert [batch[:4] for batch in batches] == [
        (0, 0, False, 4),
        (1, 0, False, 4),
        (2, 0, True, 2),
        (3, 1, False, 4),
        (4, 1, False, 4),
        (5, 1, True, 2),
    ]
    assert numbers(iter(batches[:3])) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8], [9]]]


def test_a_last_batch_smaller_than_the_lanes_leaves_lanes_out() -> None:
    loader = Loader([float(i) for i in range(9)], batch_size=7, shuffle=False)
    last = list(loader.feed(plan_of(num_epochs=1, num_lanes=4)))[-1]
    # Lane l of n samples takes [l * n // 4, (l + 1) * n // 4).
    assert last.num_samples == 2
    assert [(lane.lane, lane.num_samples, lane.data.tolist()) for lane in last.lanes] == [
        (1, 1, [7.0]),
        (3, 1, [8.0]),
    ]


def test_drop_last_leaves_the_partial_batch_out() -> None:
    loader = Loader(list(range(10)), batch_size=4, drop_last=True)
    assert loader.num_steps_per_epoch(2) == 2
    assert [batch[:4] for batch in loader.feed(plan_of(3))] == [
        (0, 0, False, 4),
        (1, 0, True, 4),
        (2, 1, False, 4),
    ]


@pytest.mark.practice("P39")
def test_order_is_the_permutation_of_seed_and_epoch() -> None:
    """Every epoch has a different order, decided only by seed and epoch."""
    loader = Loader(list(range(100)), batch_size=10)
    steps = numbers(loader.feed(plan_of(num_epochs=2, first_epoch=5)))
    for epoch in (0, 1):
        found = [index for step in steps[epoch * 10 : epoch * 10 + 10] for lane in step for index in lane]
        expected = Permutation(100, seed=7, epoch=5 + epoch)(torch.arange(100).numpy())
        assert found == expected.tolist()


def test_without_batch_size_every_item_is_a_lane() -> None:
    items = [{"x": torch.tensor(float(index))} for index in range(7)]
    batches = list(Loader(items, batch_size=None, shuffle=False).feed(plan_of(num_epochs=1, num_lanes=3)))
    assert [batch.num_samples for batch in batches] == [3, 3, 1]
    assert [[lane.num_samples for lane in batch.lanes] for batch in batches] == [[1, 1, 1], [1, 1, 1], [1]]
    assert [lane.data is items[index] for index, lane in enumerate(batches[0].lanes)] == [True] * 3
    assert batches[2].lanes[0].lane == 2


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("dataset", [Noisy(22), NoisyMany(22)], ids=["one by one", "many at once"])
@pytest.mark.practice("P41")
def test_workers_and_resume_change_no_bit(dataset: Noisy, workers: int) -> None:
    """Random samples are bit-for-bit identical with any number of workers, and after resuming."""

    def batches(workers: int, cursor: int = 0) -> list[Any]:
        loader = Loader(dataset, batch_size=8, workers=workers, collate=draw_and_stack)
        return [seen(batch) for batch in loader.feed(plan_of(8, num_lanes=3, cursor=cursor))]

    whole = batches(0)
    assert [step[0] for step in whole] == list(range(8))
    assert batches(workers) == whole
    for cursor in (1, 3, 7) if workers else range(9):
        assert batches(workers, cursor) == whole[cursor:]


@pytest.mark.parametrize("workers", [0, 2])
def test_processes_together_see_what_one_sees(workers: int) -> None:
    def lanes(lanes: range) -> list[Any]:
        loader = Loader(Noisy(19), batch_size=8, workers=workers)
        return [seen(batch) for batch in loader.feed(plan_of(5, num_lanes=5, lanes=lanes))]

    whole, first, second = lanes(range(5)), lanes(range(3)), lanes(range(3, 5))
    for one, left, right in zip(whole, first, second, strict=True):
        assert one[:4] == left[:4] == right[:4]
        assert one[4] == left[4] + right[4]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_process_without_a_lane_in_the_last_batch_still_gets_the_step(workers: int) -> None:
    loader = Loader(Noisy(9), batch_size=8, workers=workers)
    batches = list(loader.feed(plan_of(4, num_lanes=4, lanes=range(1))))
    assert [(batch.num_samples, len(batch.lanes)) for batch in batches] == [(8, 1), (1, 0), (8, 1), (1, 0)]


@pytest.mark.practice("P41")
def test_draws_differ_between_steps_and_lanes() -> None:
    """No two lanes or steps draw the same random numbers."""
    drawn = [
        lane.data[:, 1] for batch in Loader(Noisy(16), batch_size=4).feed(plan_of(8)) for lane in batch.lanes
    ]
    assert len({tuple(each.tolist()) for each in drawn}) == 16


TENSORS = TensorDataset(torch.randn(20, 3), torch.arange(20), torch.randn(20, 2, 2, dtype=torch.float64) > 0)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("shuffle", [True, False])
def test_tensors_gathered_at_once_are_those_collated_one_by_one(shuffle: bool, workers: int) -> None:
    def lanes(dataset: Any) -> list[Any]:
        loader = Loader(dataset, batch_size=6, shuffle=shuffle, workers=workers)
        return [lane.data for batch in loader.feed(plan_of(num_epochs=2)) for lane in batch.lanes]

    at_once, one_by_one = lanes(TENSORS), lanes([TENSORS[index] for index in range(20)])
    assert all(type(lane) is list for lane in at_once)
    for left, right in zip(at_once, one_by_one, strict=True):
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(left, right, strict=True))


def test_gathered_tensors_do_not_share_memory_with_the_dataset() -> None:
    for batch in Loader(TENSORS, batch_size=6, shuffle=False).feed(plan_of(2)):
        for lane in batch.lanes:
            before = TENSORS.tensors[0].clone()
            lane.data[0].add_(1)
            assert torch.equal(TENSORS.tensors[0], before)


class OwnTensors(TensorDataset):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)


@pytest.mark.parametrize(
    ("dataset", "collate", "expected"),
    [
        ([1, 2], None, FetchItem),
        ((1, 2), None, FetchItem),
        ([1, 2], default_collate, FetchSamples),
        ([1, 2], draw_and_stack, FetchSamples),
        (TENSORS, default_collate, FetchTensors),
        (TENSORS, draw_and_stack, FetchSamples),
        (OwnTensors(torch.ones(2)), default_collate, FetchSamples),
        (TensorDataset(torch.eye(2).to_sparse()), default_collate, FetchSamples),
        (split(TENSORS, [10, 10], seed=1)[0], default_collate, FetchTensors),
        (Noisy(2), None, FetchSamples),
    ],
)
def test_generators_are_left_alone_only_where_nothing_can_draw(
    dataset: Any, collate: Any, expected: type
) -> None:
    assert type(fetch_for(dataset, seed=1, shuffle=True, collate=collate)) is expected


def test_a_part_of_a_split_is_read_as_itself() -> None:
    part = split(TENSORS, [0.6, 0.4], seed=3)[0]
    batches = Loader(part, batch_size=5, shuffle=False).feed(plan_of(num_epochs=1))
    found = [index for batch in batches for lane in batch.lanes for index in lane.data[1].tolist()]
    assert found == list(part.indices) == [part[place][1].item() for place in range(12)]
    shuffled = Loader(part, batch_size=5).feed(plan_of(num_epochs=1))
    places = Permutation(12, seed=7, epoch=0)(torch.arange(12).numpy())
    found = [index for batch in shuffled for lane in batch.lanes for index in lane.data[1].tolist()]
    assert found == [part.indices[place] for place in places]


@pytest.mark.parametrize("workers", [0, 1])
def test_what_users_wrote_runs_with_one_thread(workers: int) -> None:
    torch.set_num_threads(2)
    found = numbers(Loader(Threads(4), batch_size=2, workers=workers).feed(plan_of(2)))
    assert found == [[[1], [1]], [[1], [1]]]
    assert torch.get_num_threads() == 2


def test_threads_come_back_after_a_failure() -> None:
    torch.set_num_threads(2)
    with pytest.raises(KeyError):
        list(Loader(Broken(6), batch_size=2).feed(plan_of(num_epochs=1)))
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_leave_the_generators_of_this_process_alone(workers: int) -> None:
    before = torch.get_rng_state()
    list(Loader(Noisy(8), batch_size=2, workers=workers).feed(plan_of(4)))
    assert torch.equal(torch.get_rng_state(), before)


def test_workers_ignore_ctrl_c_and_forget_the_parents_handler() -> None:
    signal.signal(signal.SIGTERM, lambda *_: None)
    batch = next(Loader(Signals(4), batch_size=4, workers=1).feed(plan_of(1)))
    assert all(lane.data.all() for lane in batch.lanes)


@pytest.mark.parametrize("workers", WORKERS)
def test_a_broken_sample_is_named_with_its_traceback(workers: int) -> None:
    with pytest.raises(KeyError, match="no label") as caught:
        list(Loader(Broken(8), batch_size=4, shuffle=False, workers=workers).feed(plan_of(2)))
    said = str(caught.value) + "\n".join(getattr(caught.value, "__notes__", []))
    assert "while fetching sample 5 for lane 0 of step 1" in said
    shown = said + "".join(str(entry.path) for entry in caught.traceback)
    assert "datasets.py" in shown
    wait_for_no_children()


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_that_do_not_collate_are_named(workers: int) -> None:
    uneven = [torch.zeros(length) for length in range(12)]
    with pytest.raises(RuntimeError) as caught:
        list(Loader(uneven, batch_size=12, shuffle=False, workers=workers).feed(plan_of(1, num_lanes=1)))
    said = str(caught.value) + "\n".join(getattr(caught.value, "__notes__", []))
    assert "while collating samples 0, 1, 2, 3, 4, 5, 6, 7 and 4 more for lane 0 of step 0" in said


@pytest.mark.parametrize("workers", [0, 2])
def test_close_ends_the_workers(workers: int) -> None:
    feed = Loader(Noisy(100), batch_size=4, workers=workers).feed(plan_of(20))
    next(feed)
    assert len(multiprocessing.active_children()) == workers
    feed.close()
    assert multiprocessing.active_children() == []
    assert list(feed) == []
    feed.close()


def test_workers_end_when_the_feed_is_forgotten() -> None:
    feed = Loader(Noisy(100), batch_size=4, workers=2).feed(plan_of(20))
    next(feed)
    del feed
    gc.collect()
    wait_for_no_children()


def test_one_set_of_workers_crosses_epochs() -> None:
    feed = Loader(Noisy(6), batch_size=2, workers=1).feed(plan_of(num_epochs=4))
    processes = set()
    for _ in range(10):
        next(feed)
        processes |= {child.pid for child in multiprocessing.active_children()}
    feed.close()
    assert len(processes) == 1


@pytest.fixture
def spawn() -> Iterator[None]:
    before = torch.multiprocessing.get_start_method(allow_none=True)
    torch.multiprocessing.set_start_method("spawn", force=True)
    yield
    torch.multiprocessing.set_start_method(before, force=True)


@pytest.mark.parametrize("dataset", [Noisy(10), Stream(10)], ids=["with a length", "stream"])
def test_spawned_workers_give_the_same_bits(dataset: Any, spawn: None) -> None:
    def batches(workers: int) -> list[Any]:
        loader = Loader(dataset, batch_size=4, workers=workers, collate=draw_and_stack)
        return [seen(batch) for batch in loader.feed(plan_of(6))]

    torch.set_default_dtype(torch.float64)
    assert batches(1) == batches(0)


def test_evaluation_sees_every_sample_once_in_order() -> None:
    loader = Loader(list(range(11)), batch_size=4, drop_last=True)
    batches = list(loader.feed_in_order(seed=7, num_lanes=3, lanes=range(3)))
    assert [index for step in numbers(iter(batches)) for lane in step for index in lane] == list(range(11))
    assert [batch.is_epoch_end for batch in batches] == [False, False, True]


def test_draws_of_evaluation_are_not_those_of_training() -> None:
    loader = Loader(Noisy(4), batch_size=4, shuffle=False)
    training = next(loader.feed(plan_of(1)))
    evaluation = next(loader.feed_in_order(seed=7, num_lanes=2, lanes=range(2)))
    again = next(loader.feed_in_order(seed=7, num_lanes=2, lanes=range(2)))
    assert seen(evaluation) == seen(again) != seen(training)


def test_a_loader_can_be_fed_from_twice_at_once() -> None:
    loader = Loader(Noisy(20), batch_size=4)
    alone = [seen(batch) for batch in loader.feed(plan_of(5))]
    one, other = loader.feed(plan_of(5)), loader.feed(plan_of(5))
    together = [(seen(left), seen(right)) for left, right in zip(one, other, strict=True)]
    assert together == list(zip(alone, alone, strict=True))


def test_a_phase_seeds_by_global_step_and_counts_from_its_own_start() -> None:
    loader = Loader(Noisy(6), batch_size=4)
    phase = list(loader.feed(plan_of(num_epochs=1, first_step=10, first_epoch=4)))
    assert [batch[:3] for batch in phase] == [(10, 4, False), (11, 4, True)]
    other = list(loader.feed(plan_of(num_epochs=1, first_step=20, first_epoch=4)))
    drawn, drawn_later = phase[0].lanes[0].data, other[0].lanes[0].data
    assert torch.equal(drawn[:, 0], drawn_later[:, 0])
    assert not torch.equal(drawn[:, 1], drawn_later[:, 1])


def test_recipe_says_what_batches_depend_on() -> None:
    assert Loader([1, 2, 3], batch_size=2, workers=1).recipe() == {
        "batch_size": 2,
        "shuffle": True,
        "drop_last": False,
        "num_samples": 3,
        "content": None,
        "order": 1,
    }
    part, _ = split([1, 2, 3], [2, 1], seed=5)
    assert Loader(part, batch_size=None).recipe()["content"] == "unnamed/split 5 of 3 at 0:2"


class NoLength:
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ([], "the dataset list is empty"),
        (3, "3 is not a dataset"),
        (NoLength(), "has __getitem__ but no __len__"),
        (DataLoader([1]), "got a DataLoader. Pass its dataset"),  # type: ignore[arg-type]
        (iter([1]), "has no state_dict and no load_state_dict, so a resumed run would repeat"),
    ],
)
def test_what_is_no_dataset_is_refused(dataset: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Loader(dataset, batch_size=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number from 1 on, got 0"),
        ({"batch_size": 1.5}, r"batch_size must be a whole number from 1 on, got 1\.5"),
        ({"batch_size": 1, "workers": -1}, "workers must be 0 or more, got -1"),
        ({"batch_size": 1, "collate": 3}, "collate must be callable, got 3"),
        ({"batch_size": None, "collate": sum}, "collate is not applied where batch_size=None"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(changes: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Loader([1, 2], **changes)


def test_fewer_samples_than_lanes_in_a_batch_are_refused() -> None:
    loader = Loader(list(range(10)), batch_size=2)
    for call in (lambda: loader.feed(plan_of(1, num_lanes=3)), lambda: loader.num_steps_per_epoch(3)):
        with pytest.raises(UsageError, match=r"got batch_size=2 with 3 lanes\. Pass batch_size=3 or more"):
            call()


def test_an_epoch_without_a_step_is_refused() -> None:
    with pytest.raises(UsageError, match="3 samples do not fill a batch of 4 and drop_last=True"):
        Loader([1, 2, 3], batch_size=4, drop_last=True).feed(plan_of(1))


KILLED = """
import multiprocessing, os, signal, sys
import torch
from truestep.run.data import Loader, DeliveryPlan

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    lanes = {"num_lanes": 1, "lanes": range(1)}
    start = {"first_step": 0, "first_epoch": 0, "cursor": 0}
    plan = DeliveryPlan(seed=1, **lanes, **start, num_epochs=9, num_steps=None)
    feed = Loader([torch.zeros(100_000) for _ in range(50)], batch_size=4, workers=2).feed(plan)
    next(feed)
    print(*[child.pid for child in multiprocessing.active_children()], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def is_running(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    # A process that has ended but that nobody has waited for is still listed, as a zombie.
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks processes up in /proc")
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_end_with_a_parent_that_was_killed(tmp_path: Path, method: str) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    command = [sys.executable, str(script), method]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        assert parent.wait(60) == -signal.SIGKILL
    assert len(workers) == 2
    deadline = time.monotonic() + 20
    while any(map(is_running, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_running, workers))
