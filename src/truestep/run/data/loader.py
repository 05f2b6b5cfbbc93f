"""The loader: batches of a dataset, cut into lanes, the same for any number of workers and after any resume.

Owns what users pass and what a run gets. Leaves order, fetching, streams and processes to its neighbours.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, default_collate

from truestep.base import rng
from truestep.errors import StateError, UsageError
from truestep.run.data import permutation
from truestep.run.data.feed import Feed, feed_samples, feed_stream
from truestep.run.data.fetch import Collate, fetch_for
from truestep.run.data.plan import DeliveryPlan, PlannedStep, count_steps, steps_of
from truestep.run.data.stream import Lease, StreamReader, check_stream, start_of

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class Loader:
    """Batches of a dataset for a run.

    A dataset with `__len__` and `__getitem__` is read in an order that seed and epoch determine. A dataset
    with only `__iter__` is a stream: it needs `state_dict()` and `load_state_dict()`, after which `__iter__`
    continues from there, and may have `set_epoch(epoch)`. A stream has one reader: with workers, one process
    reads it, and every process of a run reads all of it and keeps its own lanes, so it must not shard itself.

    With `batch_size=None` each item of the dataset is one lane's batch already, and collate is not applied.

    >>> loader = Loader([1.0, 2.0, 3.0], batch_size=2)
    >>> [batch.lanes[0].data.tolist() for batch in loader.feed_in_order(seed=7, num_lanes=1, lanes=range(1))]
    [[1.0, 2.0], [3.0]]
    """

    def __init__(
        self,
        dataset: Any,
        *,
        batch_size: int | None,
        workers: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        collate: Collate | None = None,
        pin_memory: bool = False,
    ) -> None:
        _check_arguments(batch_size, workers, collate)
        self.dataset = dataset
        self.batch_size = batch_size
        self.workers = workers
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.collate = default_collate if collate is None else collate
        self.pin_memory = pin_memory
        self.is_stream = _is_stream(dataset)
        self._initial: Any = None
        self._lease = Lease()
        if self.is_stream:
            check_stream(dataset)
            # Each phase and each evaluation begins here, however often the dataset was read before.
            self._initial = copy.deepcopy(dataset.state_dict())
        elif len(dataset) == 0:
            raise UsageError(
                f"the dataset {type(dataset).__name__} is empty. Pass one with at least one sample."
            )

    def recipe(self) -> dict[str, Json]:
        """Return what the batches depend on besides seed and lanes."""
        content = getattr(self.dataset, "content_id", None)
        return {
            "batch_size": self.batch_size,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
            "num_samples": None if self.is_stream else len(self.dataset),
            "content": None if content is None else str(content),
            "order": permutation.VERSION,
        }

    def num_steps_per_epoch(self, num_lanes: int) -> int | None:
        """Return the number of steps in an epoch, or None for a stream."""
        batch_size = self._global_batch_size(num_lanes)
        if self.is_stream:
            return None
        return count_steps(len(self.dataset), batch_size=batch_size, drop_last=self.drop_last)

    def feed(self, plan: DeliveryPlan, *, state: Mapping[str, Any] | None = None) -> Feed:
        """Start to deliver a plan's batches, from its cursor on; a stream continues from its state."""
        if self.is_stream:
            return self._feed_stream(plan, state, drop_last=self.drop_last)
        if state:
            raise StateError(
                f"a dataset with a length resumes from the cursor alone, got the state {repr(state)[:80]}."
                " Pass state=None."
            )
        return self._feed_samples(plan, shuffle=self.shuffle, drop_last=self.drop_last)

    def feed_in_order(self, *, seed: int, num_lanes: int, lanes: range) -> Feed:
        """Start to deliver one epoch for evaluation: every sample once, not shuffled, the last batch kept."""
        plan = DeliveryPlan(
            # Draws of an evaluation have nothing to do with those of training at the same step.
            seed=rng.derive(seed, "evaluation"),
            num_lanes=num_lanes,
            lanes=lanes,
            first_step=0,
            first_epoch=0,
            cursor=0,
            num_epochs=1,
            num_steps=None,
        )
        if self.is_stream:
            return self._feed_stream(plan, None, drop_last=False)
        return self._feed_samples(plan, shuffle=False, drop_last=False)

    def _feed_samples(self, plan: DeliveryPlan, *, shuffle: bool, drop_last: bool) -> Feed:
        batch_size, num_samples = self._global_batch_size(plan.num_lanes), len(self.dataset)
        if count_steps(num_samples, batch_size=batch_size, drop_last=drop_last) == 0:
            raise UsageError(
                f"an epoch has no step: {num_samples} samples do not fill a batch of {batch_size} and"
                " drop_last=True. Pass a smaller batch_size, or drop_last=False."
            )

        def steps() -> Iterator[PlannedStep]:
            return steps_of(plan, num_samples=num_samples, batch_size=batch_size, drop_last=drop_last)

        collate = None if self.batch_size is None else self.collate
        return feed_samples(
            steps,
            fetch_for(self.dataset, seed=plan.seed, shuffle=shuffle, collate=collate),
            num_workers=self.workers,
            num_lanes=len(plan.lanes),
            pin_memory=self.pin_memory,
        )

    def _feed_stream(self, plan: DeliveryPlan, state: Mapping[str, Any] | None, *, drop_last: bool) -> Feed:
        if self.workers == 0:
            self._lease.is_held = False
            self._lease = Lease()
        reader = StreamReader(
            dataset=self.dataset,
            plan=plan,
            batch_size=self._global_batch_size(plan.num_lanes),
            drop_last=drop_last,
            collate=None if self.batch_size is None else self.collate,
            initial=self._initial,
            start=start_of(plan, state, initial=self._initial),
            lease=self._lease,
        )
        return feed_stream(reader, num_workers=self.workers, pin_memory=self.pin_memory)

    def _global_batch_size(self, num_lanes: int) -> int:
        if self.batch_size is None:
            return num_lanes
        if self.batch_size < num_lanes:
            raise UsageError(
                f"batch_size must be at least the number of lanes, got batch_size={self.batch_size} with"
                f" {num_lanes} lanes. Pass batch_size={num_lanes} or more, or fewer lanes."
            )
        return self.batch_size


def _check_arguments(batch_size: object, workers: object, collate: object) -> None:
    if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
        raise UsageError(
            f"batch_size must be a whole number from 1 on, got {batch_size!r}. Pass the size of the global"
            " batch, or None if every item of the dataset is one lane's batch already."
        )
    if not isinstance(workers, int) or workers < 0:
        raise UsageError(f"workers must be 0 or more, got {workers!r}. Pass 0 to read in this process.")
    if collate is not None and not callable(collate):
        raise UsageError(
            f"collate must be callable, got {collate!r}. Pass a function from samples to a batch."
        )
    if collate is not None and batch_size is None:
        raise UsageError(
            "collate is not applied where batch_size=None: every item is one lane's batch already."
            " Leave collate out, or pass a batch_size."
        )


def _is_stream(dataset: Any) -> bool:
    if isinstance(dataset, DataLoader):
        raise UsageError("Loader takes a dataset, got a DataLoader. Pass its dataset and batch_size instead.")
    # torch's IterableDataset inherits a __getitem__ that only raises.
    if isinstance(dataset, IterableDataset):
        return True
    has_items, has_length = hasattr(dataset, "__getitem__"), hasattr(dataset, "__len__")
    if has_items and has_length:
        return False
    if has_items:
        raise UsageError(
            f"the dataset {type(dataset).__name__} has __getitem__ but no __len__. Add __len__, or offer"
            " __iter__ with state_dict() and load_state_dict() instead if it has no end."
        )
    if hasattr(dataset, "__iter__"):
        return True
    raise UsageError(
        f"{dataset!r} is not a dataset: expected __len__ and __getitem__, or __iter__ with state_dict() and"
        " load_state_dict(). Pass a dataset or a list of samples."
    )
