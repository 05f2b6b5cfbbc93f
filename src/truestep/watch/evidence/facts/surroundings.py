"""Facts about randomness, processes, devices, and what a script takes from outside."""

from truestep.watch.evidence.kinds import NamedTuple, kind


@kind(varies_from="digest")
class GeneratorSeeded(NamedTuple):
    """A generator is seeded, or given a state."""

    generator: str
    how: str
    """`seed`, `state`, `new`, or `fresh`: without a seed."""
    seed: int | None
    digest: str | None
    """Of a state, comparable with those of updates."""


@kind(varies_from="size")
class NumbersDrawn(NamedTuple):
    """A first draw from a generator that is not seeded."""

    generator: str
    function: str
    size: int
    number: int | None
    """The number that was drawn, if it is a single integer."""
    library: str | None = None
    """The function of a library that has drawn, if the user's line called that."""


@kind()
class SeededLate(NamedTuple):
    """A generator is seeded after it was drawn from."""

    generator: str


@kind(varies_from="result")
class SourceRead(NamedTuple):
    """The script asks for something from outside torch."""

    what: str
    """`clock`, `environment`, `listing`, `process`, `entropy` or a generator."""
    name: str
    result: str | None


@kind()
class GroupJoined(NamedTuple):
    """A process group is made."""

    rank: int
    size: int


@kind()
class TorchImported(NamedTuple):
    """The script has imported torch."""

    version: str
    num_threads: int


@kind()
class WrapperBypassed(NamedTuple):
    """A module is called past its parallel wrapper."""

    optimizer: int
    class_name: str


UNWRAPPED, BESIDE = -1, -2
"""For the number of a wrapper: the optimizer has none, or has one and these parameters are not in it."""


@kind(varies_from="digests")
class ReplicaDigested(NamedTuple):
    """Digests of a process's weights, comparable between processes."""

    optimizer: int
    wrapper: int
    digests: dict[str, str]
    """Of the parameters after the step, by name."""
    gradients: str | None
    """A digest of what the step applied."""
    first_digests: dict[str, str]
    """Of parameters that no wrapper holds, before the first step."""
