"""Facts about the course of a long run: memory, and losses that are far from those before them."""

from truestep.watch.evidence.kinds import NamedTuple, kind


@kind(varies_from="num_steps")
class CoursePoint(NamedTuple):
    """How far the script has come, and the memory that its process holds."""

    num_steps: int
    memory_bytes: int
    used_s: float
    """Processor time of the process so far: other work on the machine does not count."""


@kind(varies_from="at_step")
class LossSpiked(NamedTuple):
    """A loss is far above those before it."""

    at_step: int
    """Counted from 0."""
    loss: float
    usual: float
    """The median of those before it."""
    highest: float
    num_before: int


class Held(NamedTuple):
    """A container that a dataset has as an attribute."""

    name: str
    kind: str
    length: int


class WorkerPoint(NamedTuple):
    """What a worker holds for itself after so many batches."""

    num_batches: int
    own_bytes: int
    held: list[Held]


@kind(varies_from="points")
class WorkerCourse(NamedTuple):
    """The memory of one worker of a loader, from its first batches on."""

    loader: int
    dataset: str
    """The class."""
    points: list[WorkerPoint]
