"""Facts about the course of a long run: memory, and losses that are far from those before them."""

from truestep.watch.evidence.kinds import NamedTuple


class Held(NamedTuple):
    """A container that a dataset has as an attribute."""

    name: str
    kind: str
    length: int
