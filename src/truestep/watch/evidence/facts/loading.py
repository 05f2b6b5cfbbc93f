"""Facts about loaders: how they were made, and what they handed out."""

from typing import Any, NamedTuple

from truestep.watch.evidence.moment import kind


@kind()
class LoaderUsed(NamedTuple):
    """A loader begins its first epoch."""

    loader: int
    class_name: str
    dataset: str
    """The names of the classes of its dataset and sampler."""
    sampler: str
    batch_size: int | None
    num_workers: int
    length: int | None
    """The number of batches, None if there is none, -1 if only the user's code knows it."""


@kind()
class EpochBegan(NamedTuple):
    """A loader is iterated from its beginning."""

    loader: int


@kind()
class EpochSet(NamedTuple):
    """`set_epoch` of a distributed sampler."""

    epoch: int


@kind()
class BatchFetched(NamedTuple):
    """A loader hands out a batch."""

    loader: int
    tensors: Any
    """Shape and data type of its first tensors, with their names where it is a mapping."""


@kind(varies_from="value")
class LoaderMade(NamedTuple):
    """A loader is made."""

    loader: int
    value: Any


@kind(varies_from="value")
class LoaderOrder(NamedTuple):
    """The order in which a loader goes through its data in an epoch."""

    loader: int
    value: Any


@kind(varies_from="value")
class SamplesSeen(NamedTuple):
    """The samples of an epoch, by digest."""

    loader: int
    value: Any


@kind(varies_from="value")
class WorkerState(NamedTuple):
    """What a loader's worker starts with."""

    loader: int
    value: Any


@kind(varies_from="value")
class GeneratorsHeld(NamedTuple):
    """Generators that a dataset holds, of which each worker gets a copy."""

    loader: int
    value: Any


@kind(varies_from="value")
class RowsReused(NamedTuple):
    """Samples of training that are scored, too."""

    model: int
    value: Any


@kind(varies_from="value")
class LabelsSliced(NamedTuple):
    """A slice of the labels is used."""

    value: Any


@kind(varies_from="value")
class InputMeasured(NamedTuple):
    """The range of a model's input."""

    model: int
    value: Any
