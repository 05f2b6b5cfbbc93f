"""The plan: what is looked at in a watched script, and what is kept of it.

Owns the choices and their names. Imports nothing of ours but errors: both processes read it.
"""

import sys
from dataclasses import asdict, dataclass
from typing import Any, Literal

from truestep.errors import UsageError

FAMILIES = ("data", "forward", "backward", "optimizer", "scheduler", "files", "seeds", "group", "setup")
"""Moments are observed by families; `optimizer` is always on, as steps are counted by it."""

DIGESTS = ("batch", "inputs", "loss", "gradients", "weights", "state", "buffers", "generators", "kept")
"""What a digest can be kept of at each step of an optimizer; `kept` is all else that outlives the step, by
name, and the contents of saved files."""

FREEZABLE = (
    "torch",
    "numpy",
    "random",
    "hash",
    "addresses",
    "clock",
    "entropy",
    "listing",
    "filetimes",
    "arrays",
    "threads",
    "algorithms",
    "intraop",
)
"""What can be held still in a script, to see whether its result then repeats."""

BITS = ("digests", "finite", "none")
"""What is read of the tensors that operations take and give."""

NUM_FIRST = 8
"""Steps at the start whose values are read, also from an accelerator, for which the script then waits."""
_EVERY = 256


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is kept. As it stands: cheap moments only, as `check` needs them.

    >>> Plan(steps=20, digests=DIGESTS, parameters=(3,)).steps
    20
    """

    families: tuple[str, ...] = FAMILIES
    digests: tuple[str, ...] = ()
    parameters: tuple[int, ...] = ()
    """Steps at which gradients, weights, state and buffers also get a digest for each name."""
    look: Literal["sampled", "every", "never"] = "sampled"
    """At which steps the loss is read, and generators are compared: the first few and some later ones."""
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
    """What is held still on purpose. `addresses` takes `hash` with it: they do not come again without."""
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
        _check_names("families", self.families, FAMILIES)
        _check_names("digests", self.digests, DIGESTS)
        _check_names("frozen", self.frozen, FREEZABLE)
        if self.look not in ("sampled", "every", "never"):
            raise UsageError(f"look must be 'sampled', 'every' or 'never', got {self.look!r}.")
        _check_names("bits", (self.bits,), BITS)
        if self.steps is not None and self.steps < 1:
            raise UsageError(
                f"steps must be at least 1, got {self.steps}. Leave it out to run the script to its end."
            )
        if self.workers is not None and self.workers < 0:
            raise UsageError(f"workers must not be negative, got {self.workers}. Pass 0 for none.")
        if self.kill_at is not None and self.kill_at < 1:
            raise UsageError(f"kill_at must be at least 1, got {self.kill_at}. Leave it out to kill nothing.")
        _check_window(self.operations)

    def looks_at(self, step: int) -> bool:
        """Whether values are read at this step."""
        if self.look == "sampled":
            return step < NUM_FIRST or step % _EVERY == 0
        return self.look == "every"

    def next_look(self, step: int) -> int:
        """Return the first step after this one at which values are read."""
        if self.look == "sampled":
            return step + 1 if step + 1 < NUM_FIRST else (step // _EVERY + 1) * _EVERY
        return step + 1 if self.look == "every" else sys.maxsize

    def as_fields(self) -> dict[str, Any]:
        """Return the arguments that make this plan again, as plain values."""
        return asdict(self)


def _check_names(field: str, given: tuple[str, ...], known: tuple[str, ...]) -> None:
    unknown = [name for name in given if name not in known]
    if unknown:
        raise UsageError(f"{field} has {', '.join(map(repr, unknown))}. There are {', '.join(known)}.")


def _check_window(window: tuple[int, int] | None) -> None:
    if window is not None and not 0 <= window[0] <= window[1]:
        raise UsageError(
            f"operations must be a first and a last step, counted from 0, got {window}. "
            "Pass (3, 3) for the fourth step."
        )
