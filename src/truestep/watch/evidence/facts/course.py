"""Facts about the course of a long run: memory, and losses that are far from those before them."""

from truestep.watch.evidence.kinds import NamedTuple, Place, kind


class Held(NamedTuple):
    """A container that a dataset has as an attribute."""

    name: str
    kind: str
    length: int


class Holder(NamedTuple):
    """Memory that one line of the user's has made in one module."""

    category: str
    """As in `MemoryExhausted.held`."""
    module: str
    """Its path in the model; empty outside."""
    file: str | None
    line: int | None
    num_bytes: int
    num_tensors: int


@kind(varies_from="device")
class MemoryExpected(NamedTuple):
    """The first step of an optimizer is about to begin: how much memory steps like it will need at most."""

    device: str
    peak_bytes: int
    before_bytes: int
    """What was held before the first forward pass, without its inputs: parameters and whatever else."""
    gradients_bytes: int
    state_bytes: int
    """The state of all optimizers when it is complete."""
    limit_bytes: int | None
    """What the process can have, if that is known."""
    without_state: list[str]
    """Classes of optimizers whose state cannot be foreseen: it comes on top."""


@kind(varies_from="place")
class MemoryExhausted(NamedTuple):
    """An allocation has failed and the script has ended with that error: what held memory then."""

    phase: str
    """What was under way: `forward`, `backward`, `optimizer`, `data`, or nothing of these."""
    device: str
    place: Place | None
    """The innermost line of the user's."""
    error: str
    requested_bytes: int | None
    held: dict[str, int]
    """Bytes by category."""
    free_bytes: int | None
    holders: list[Holder]
    """The largest first."""
    holders_step: int | None
    """The step whose activations `holders` has, from 1, if operations were noted no more in this one."""
    batch_size: int | None
    fixed_bytes: int
    """What training needs whatever the batch size when it needs most, with state that is not there yet."""
    gradients_bytes: int
    """Those of all that is optimized; they are there when the activations are gone."""
    per_sample_bytes: float | None
    is_partial: bool
    """Whether no complete step was measured, so that a sample may need more than that."""
