"""The loader over streams: interrupted anywhere and resumed, the same batches as uninterrupted."""

import multiprocessing
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
import torch

from tests.run.data.datasets import (
    BrokenStream,
    CountsTooLate,
    Endless,
    EpochNotInState,
    GoesOn,
    Noisy,
    ShuffledByEpoch,
    StaysAtItsEnd,
    Stream,
    draw_and_stack,
    plan_of,
    seen,
)
from truestep.errors import StateError, UsageError
from truestep.run.data import Loader

KINDS = {
    "begins anew": lambda: Stream(11),
    "ends at a batch border": lambda: Stream(12),
    "stays at its end": lambda: StaysAtItsEnd(11),
    "goes on": lambda: GoesOn(10),
    "shuffled by epoch": lambda: ShuffledByEpoch(11),
    "shuffled, epoch not in its state": lambda: EpochNotInState(11),
    "shuffled, at a border": lambda: ShuffledByEpoch(8),
}


def first_numbers(batches: Any) -> list[list[list[float]]]:
    return [[lane.data[:, 0].tolist() for lane in batch.lanes] for batch in batches]


def run(dataset: Any, *, stops: list[int], workers: int = 0, plan: Any = None, **settings: Any) -> list[Any]:
    """Read a plan in several runs of one process each: every run has a dataset of its own."""
    found: list[Any] = []
    state: Any = None
    plan = plan or {"num_epochs": 3}
    for stop in [*stops, 10**9]:
        loader = Loader(dataset(), batch_size=4, workers=workers, **settings)
        feed = loader.feed(plan_of(**plan, cursor=len(found)), state=state)
        for batch in feed:
            found.append(seen(batch))
            if len(found) == stop:
                break
        state = feed.state_dict()
        feed.close()
    return found


def test_a_short_last_batch_is_cut_like_any_other() -> None:
    batches = list(Loader(Stream(11), batch_size=4).feed(plan_of(num_epochs=2)))
    assert [batch[:4] for batch in batches] == [
        (0, 0, False, 4),
        (1, 0, False, 4),
        (2, 0, True, 3),
        (3, 1, False, 4),
        (4, 1, False, 4),
        (5, 1, True, 3),
    ]
    assert first_numbers(batches)[:3] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8], [9, 10]]]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_end_at_a_batch_border_gives_no_empty_batch(workers: int) -> None:
    batches = Loader(Stream(8), batch_size=4, workers=workers).feed(plan_of(num_epochs=2))
    assert [batch[:4] for batch in batches] == [
        (0, 0, False, 4),
        (1, 0, True, 4),
        (2, 1, False, 4),
        (3, 1, True, 4),
    ]


def test_drop_last_ends_the_epoch_with_the_last_whole_batch() -> None:
    batches = Loader(Stream(11), batch_size=4, drop_last=True).feed(plan_of(3))
    assert [batch[:4] for batch in batches] == [(0, 0, False, 4), (1, 0, True, 4), (2, 1, False, 4)]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("num_steps", "is_epoch_end"), [(1, False), (2, True), (3, False)])
def test_the_last_step_of_a_plan_knows_its_epoch_from_the_sample_after_it(
    num_steps: int, is_epoch_end: bool, drop_last: bool
) -> None:
    batches = list(Loader(Stream(8), batch_size=4, drop_last=drop_last).feed(plan_of(num_steps)))
    assert len(batches) == num_steps
    assert batches[-1].is_epoch_end is is_epoch_end


@pytest.mark.parametrize(("drop_last", "is_epoch_end"), [(False, False), (True, True)])
def test_the_last_step_of_a_plan_does_not_count_samples_that_are_dropped(
    drop_last: bool, is_epoch_end: bool
) -> None:
    batches = list(Loader(Stream(11), batch_size=4, drop_last=drop_last).feed(plan_of(2)))
    assert batches[-1].is_epoch_end is is_epoch_end


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_interrupted_at_every_step_gives_the_same_batches(kind: str, drop_last: bool) -> None:
    whole = run(KINDS[kind], stops=[], drop_last=drop_last, collate=draw_and_stack)
    assert {step[1] for step in whole} == {0, 1, 2}
    assert sum(step[2] for step in whole) == 3
    for stop in range(1, len(whole) + 1):
        assert run(KINDS[kind], stops=[stop], drop_last=drop_last, collate=draw_and_stack) == whole
    every = list(range(1, len(whole) + 1))
    assert run(KINDS[kind], stops=every, drop_last=drop_last, collate=draw_and_stack) == whole


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("kind", ["begins anew", "shuffled, at a border"])
@pytest.mark.practice("P37")
def test_workers_and_interruptions_change_no_bit(kind: str, workers: int) -> None:
    """An iterable dataset gives the same bits with any number of workers and interruptions."""
    whole = run(KINDS[kind], stops=[], collate=draw_and_stack)
    assert run(KINDS[kind], stops=[], workers=workers, collate=draw_and_stack) == whole
    every = list(range(1, len(whole)))
    assert run(KINDS[kind], stops=every, workers=workers, collate=draw_and_stack) == whole


def test_a_plan_in_steps_is_cut_short_and_goes_on() -> None:
    whole = run(KINDS["begins anew"], stops=[], plan={"num_steps": 7})
    assert len(whole) == 7
    assert whole == run(KINDS["begins anew"], stops=[])[:7]
    for stop in range(1, 7):
        assert run(KINDS["begins anew"], stops=[stop], plan={"num_steps": 7}) == whole


def test_a_state_does_not_change_once_it_was_given() -> None:
    feed = Loader(ShuffledByEpoch(11), batch_size=4).feed(plan_of(num_epochs=1))
    next(feed)
    state = feed.state_dict()
    assert state == {"step": 1, "epoch": 0, "is_begun": True, "stream": {"epoch": 0, "position": 4}}
    list(feed)
    assert state["stream"] == {"epoch": 0, "position": 4}


def test_a_state_does_not_change_when_it_is_resumed_from() -> None:
    feed = Loader(ShuffledByEpoch(11), batch_size=4).feed(plan_of(num_epochs=1))
    next(feed)
    state = feed.state_dict()
    list(Loader(ShuffledByEpoch(11), batch_size=4).feed(plan_of(num_epochs=1, cursor=1), state=state))
    assert state["stream"] == {"epoch": 0, "position": 4}


@pytest.mark.parametrize("workers", [0, 1])
def test_the_state_is_that_of_the_last_batch_handed_out(workers: int) -> None:
    feed = Loader(Stream(100), batch_size=4, workers=workers).feed(plan_of(20))
    assert feed.state_dict()["stream"] == {"position": 0}
    for step in range(3):
        next(feed)
        assert feed.state_dict()["stream"] == {"position": 4 * (step + 1)}
    feed.close()
    assert feed.state_dict()["step"] == 3


def test_what_happens_between_steps_does_not_reach_the_stream() -> None:
    quiet = [seen(batch) for batch in Loader(Stream(11), batch_size=4).feed(plan_of(num_epochs=2))]
    loud = []
    for batch in Loader(Stream(11), batch_size=4).feed(plan_of(num_epochs=2)):
        torch.manual_seed(batch.step)
        loud.append(seen(batch))
    assert loud == quiet


@pytest.mark.parametrize("collate", [None, draw_and_stack])
def test_processes_together_see_what_one_sees(collate: Any) -> None:
    def lanes(lanes: range) -> list[Any]:
        loader = Loader(Stream(11), batch_size=6, collate=collate)
        return [seen(batch) for batch in loader.feed(plan_of(num_epochs=2, num_lanes=5, lanes=lanes))]

    for one, left, right in zip(lanes(range(5)), lanes(range(2)), lanes(range(2, 5)), strict=True):
        assert one[:4] == left[:4] == right[:4]
        assert one[4] == left[4] + right[4]


def test_a_long_corpus_goes_on_in_the_next_epoch() -> None:
    found = first_numbers(Loader(GoesOn(4), batch_size=4).feed(plan_of(num_epochs=2)))
    assert found == [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]


def test_each_epoch_is_announced() -> None:
    found = first_numbers(Loader(ShuffledByEpoch(8), batch_size=8).feed(plan_of(num_epochs=3, first_epoch=2)))
    epochs = [[*chain(*lanes)] for lanes in found]
    assert [sorted(epoch) for epoch in epochs] == [list(range(8))] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_evaluation_reads_the_stream_once_and_drops_nothing() -> None:
    loader = Loader(Stream(7), batch_size=4, drop_last=True)
    for _ in range(2):
        found = first_numbers(loader.feed_in_order(seed=1, num_lanes=2, lanes=range(2)))
        assert [*chain(*chain(*found))] == list(range(7))


def test_two_feeds_of_one_stream_in_one_process_are_refused() -> None:
    loader = Loader(Stream(20), batch_size=4)
    training = loader.feed(plan_of(num_epochs=1))
    next(training)
    list(loader.feed_in_order(seed=1, num_lanes=2, lanes=range(2)))
    with pytest.raises(UsageError, match="another feed has begun to read the stream Stream"):
        next(training)


def test_one_worker_reads_however_many_are_asked_for() -> None:
    feed = Loader(Stream(100), batch_size=4, workers=3).feed(plan_of(20))
    next(feed)
    assert len(multiprocessing.active_children()) == 1
    feed.close()
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_sample_is_named(workers: int) -> None:
    with pytest.raises(KeyError, match="no label") as caught:
        list(Loader(BrokenStream(8), batch_size=4, workers=workers).feed(plan_of(2)))
    said = str(caught.value) + "\n".join(getattr(caught.value, "__notes__", []))
    assert "while reading sample 1 of step 1 of epoch 0 from the stream" in said


class NoState:
    def __iter__(self) -> Iterator[int]:
        return iter([1, 2])


class HalfAState(NoState):
    def state_dict(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize(
    ("dataset", "missing"),
    [(NoState(), "state_dict and no load_state_dict"), (HalfAState(), "load_state_dict")],
)
def test_a_stream_that_cannot_say_where_it_stands_is_refused(dataset: Any, missing: str) -> None:
    with pytest.raises(
        UsageError, match=rf"has no {missing}, so .* Add state_dict\(\), which returns the position"
    ):
        Loader(dataset, batch_size=1)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_that_counts_after_yield_is_refused(workers: int) -> None:
    with pytest.raises(UsageError, match="Count the sample before `yield`, not after"):
        list(Loader(CountsTooLate(8), batch_size=4, workers=workers).feed(plan_of(1)))


def test_a_stream_without_end_needs_nothing_to_remember() -> None:
    whole = run(Endless, stops=[], plan={"num_steps": 5})
    assert len({str(step[4]) for step in whole}) == 5
    assert run(Endless, stops=[1, 2, 3, 4], plan={"num_steps": 5}) == whole


@pytest.mark.parametrize(("num_samples", "drop_last"), [(0, False), (3, True)])
def test_a_stream_without_a_step_is_refused(num_samples: int, drop_last: bool) -> None:
    with pytest.raises(UsageError, match="the stream Stream gave no step at step 0 of epoch 0"):
        list(Loader(Stream(num_samples), batch_size=4, drop_last=drop_last).feed(plan_of(1)))


def test_a_stream_shorter_than_its_state_is_refused() -> None:
    feed = Loader(Stream(12), batch_size=4).feed(plan_of(num_epochs=1))
    next(feed), next(feed)
    with pytest.raises(UsageError, match="gave no step at step 2 of epoch 0"):
        next(Loader(Stream(8), batch_size=4).feed(plan_of(num_epochs=1, cursor=2), state=feed.state_dict()))


def test_a_state_of_another_step_is_refused() -> None:
    loader = Loader(Stream(12), batch_size=4)
    feed = loader.feed(plan_of(num_epochs=1))
    next(feed)
    with pytest.raises(StateError, match="belongs to step 1, the plan continues from 2"):
        loader.feed(plan_of(num_epochs=1, cursor=2), state=feed.state_dict())
    with pytest.raises(StateError, match="cannot be entered at step 2 without its state"):
        loader.feed(plan_of(num_epochs=1, cursor=2))


def test_a_stream_has_no_length() -> None:
    loader = Loader(Stream(12), batch_size=4)
    assert loader.num_steps_per_epoch(2) is None
    assert loader.recipe()["num_samples"] is None
    assert Loader(Noisy(12), batch_size=4).num_steps_per_epoch(2) == 3


def test_reading_runs_with_one_thread_and_training_does_not() -> None:
    torch.set_num_threads(2)
    found = []

    class Watching(Stream):
        def __iter__(self) -> Iterator[torch.Tensor]:
            for sample in super().__iter__():
                found.append(torch.get_num_threads())
                yield sample

    for _ in Loader(Watching(8), batch_size=4).feed(plan_of(num_epochs=1)):
        assert torch.get_num_threads() == 2
    assert set(found) == {1}
