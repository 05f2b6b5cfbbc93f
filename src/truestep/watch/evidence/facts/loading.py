"""Facts about loaders: how they were made, and what they handed out."""

from typing import Any

from truestep.watch.evidence.kinds import NamedTuple, Place, kind


@kind()
class LoaderUsed(NamedTuple):
    """A loader begins its first epoch."""

    loader: int
    dataset: str
    """The name of its dataset's class."""
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
    """A loader returns a batch."""

    loader: int
    tensors: Any
    """Shape and data type of its first tensors, with their names where it is a mapping."""


@kind(varies_from="is_direct")
class LoaderMade(NamedTuple):
    """A loader is made."""

    loader: int
    is_direct: bool
    """Whether the user's own code makes it."""
    dataset: int
    """The same for loaders of one dataset."""
    is_iterable: bool
    is_ordered: bool
    """Whether samples come in their stored order."""
    is_random: bool
    """Whether they are shuffled by torch's global generator."""
    num_workers: int
    has_init: bool
    """Whether it has a `worker_init_fn`."""


class EpochNumber(NamedTuple):
    """What a sampler or a dataset knows of the epoch, by which it shuffles."""

    is_shuffled: bool
    epoch: int
    class_name: str


@kind(varies_from="distributed")
class LoaderOrder(NamedTuple):
    """The order in which a loader goes through its data in an epoch."""

    loader: int
    distributed: EpochNumber | None
    """Of a distributed sampler."""
    base: int | None
    """In the first epoch: the dataset under all subsets, and which of its samples are taken, None for all."""
    indices: list[int] | None


class Labels(NamedTuple):
    """How the labels of a batch lie."""

    num_changes: int
    """From one label to the next."""
    first: int
    last: int
    counts: dict[int, int]
    """How many there are of which label."""


@kind(varies_from="epoch")
class SamplesSeen(NamedTuple):
    """The samples of an epoch, by digest."""

    loader: int
    epoch: int
    num_batches: int
    num_samples: int
    digests: list[list[int]]
    """Of the samples of each batch."""
    num_distinct: int
    """Of the first samples: how many different numbers one has, fractions only; 0 for whole numbers."""
    width: int
    labels: list[Labels]
    """Of each batch."""


@kind(varies_from="num_read")
class SamplesRedrawn(NamedTuple):
    """The first samples of a loader that does not shuffle, read twice with the same labels."""

    loader: int
    num_read: int
    num_changed: int
    """How many were different the second time."""


class GeneratorPlace(NamedTuple):
    """Where a generator is kept: the class, the attribute or global name, and the user's file."""

    owner: str | None
    name: str | None
    file: str | None


class GeneratorState(NamedTuple):
    """Digests of a generator's state, and of what in it stays while it is only drawn from."""

    digest: str
    stream: str


class WorkerGenerator(NamedTuple):
    """A generator in a worker, before and after its first batch."""

    place: GeneratorPlace
    before: GeneratorState
    after: GeneratorState | None


@kind(varies_from="generators")
class WorkerState(NamedTuple):
    """What a loader's worker starts with."""

    loader: int
    generators: list[WorkerGenerator]


@kind(varies_from="num_shared")
class RowsReused(NamedTuple):
    """Samples of training that are scored, too."""

    model: int
    num_shared: int
    num_scored: int
    num_trained: int
    lines: list[tuple[str, int]]
    """Files and lines of the user's that are under way, innermost first."""


@kind(varies_from="num_rows")
class PairsCompared(NamedTuple):
    """Inputs and their targets in two rounds through the data."""

    num_rows: int
    num_matched: int
    """Inputs that both rounds have."""
    num_changed: int
    """How many of those have another target in the later round."""
    num_missing: int
    """Inputs that only one of the rounds has."""
    num_other_targets: int
    """Targets that one round has more often than the other."""


@kind(varies_from="shape")
class TargetInInput(NamedTuple):
    """Whether a number of the input is the target, in all samples that were read."""

    shape: list[int]
    """Of one sample."""
    num_samples: int
    num_values: int
    """How many different targets there were, as far as they were counted."""
    columns: list[int]
    """The first places in the flattened sample that are the target each time."""


@kind(varies_from="num_first")
class StoredChanged(NamedTuple):
    """What two readings of one sample do to the data that a dataset stores."""

    loader: int
    num_first: int
    """How many stored values the first reading changed."""
    num_second: int
    num_values: int
    """How many numbers the sample has."""
    values: list[float]
    """One stored value: before, after the first and after the second reading."""
    place: Place | None
    """The line that changes it."""


class Spread(NamedTuple):
    """How large finite values are."""

    lowest: float
    highest: float
    mean: float
    std: float


class Levels(NamedTuple):
    """The evenly spaced values of an input: pixels, or counts."""

    lowest: float
    highest: float
    spacing: float
    """The distance of two neighbouring values; 0 if they are not evenly spaced."""


@kind(varies_from="is_trained")
class InputMeasured(NamedTuple):
    """The range of a model's input."""

    model: int
    is_trained: bool
    """Whether in a forward pass of training; else of evaluation."""
    shape: list[int]
    num_infinite: int
    num_nan: int
    spread: Spread | None
    """None if no value is finite."""
    levels: Levels | None
    """Of the first passes of each kind, if they are large enough."""
