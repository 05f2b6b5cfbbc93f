"""The plan: what is looked at in a watched script, and what is kept of it.

Owns the choices and their names. Imports nothing of ours but errors: both processes read it.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from truestep.errors import UsageError

DIGESTS = ("batch", "inputs", "loss", "gradients", "weights", "state", "buffers", "generators", "kept")
"""What a digest can be kept of at each step of an optimizer; `kept` is all else that outlives the step, by
name, and the contents of saved files."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is kept. As it stands: cheap moments only, as `check` needs them.

    >>> Plan(steps=20, digests=DIGESTS).steps
    20
    """

    digests: tuple[str, ...] = ()
    steps: int | None = None
    """After how many steps the script is ended. Optimizers that take turns make one step together."""
    workers: int | None = None
    """With how many workers every loader is built, whatever the script says."""
    settings: tuple[tuple[str, Any], ...] = ()
    """What is changed in the script once it has imported torch: `module:function` and what it is given."""
    kill_at: int | None = None
    """After how many steps the process is killed: of several, the one of rank 0."""
    sources: bool = False
    """Whether readings of the clock, the environment, folders and entropy are noted, and draws."""
    frozen: tuple[str, ...] = ()
    """What is held still on purpose, to see whether the result then repeats: `torch`, `numpy`, `random`,
    `hash`, `addresses` (takes `hash` with it), `clock`, `entropy`, `listing`, `threads`, `algorithms`,
    `intraop`.
    """
    cuda_devices: int = 0
    """For how many CUDA devices the CPU stands in; 0 leaves CUDA as it is."""
    operations: tuple[int, int] | None = None
    """First and last step in which every operation is noted; step 0 begins when torch is imported."""
    bits: Literal["digests", "finite", "none"] = "digests"
    """What is read of each operation's tensors: all bits, whether they are finite, or shapes alone."""
    portable: bool = False
    """Whether digests leave out names and the order of tensors, and steps get sketches of gradients and
    weights: for runs of another version of the script, or of torch."""
    inspect: bool = False
    """Whether what rules need is kept too: gradients, structure of models, losses, samples."""
    hangs: bool = False
    """Whether each of several processes writes down where it stands when it makes no progress."""
    flush_s: float = 0.5
    """What a killed process may lose. With digests every step is written at once."""

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise UsageError(
                f"steps must be at least 1, got {self.steps}. Leave it out to run the script to its end."
            )

    def as_fields(self) -> dict[str, Any]:
        """Return the arguments that make this plan again, as plain values."""
        return asdict(self)
