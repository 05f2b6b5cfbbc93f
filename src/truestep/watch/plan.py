"""The plan: what is looked at in a watched script, and what is kept of it.

Owns the choices and their names. Imports nothing of ours but errors: both processes read it.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from truestep.errors import UsageError

FAMILIES = ("data", "forward", "backward", "optimizer", "scheduler", "files", "seeds", "group")
"""Moments are observed by families; `optimizer` is always on, as steps are counted by it."""

DIGESTS = ("batch", "inputs", "loss", "gradients", "weights", "state", "buffers", "generators")
"""What a digest can be kept of at each step of an optimizer."""

_NUM_FIRST, _EVERY = 8, 256


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
    """After how many steps of the first optimizer the script is ended."""
    flush_s: float = 0.5
    """What a killed process may lose. With digests every step is written at once."""

    def __post_init__(self) -> None:
        _check_names("families", self.families, FAMILIES)
        _check_names("digests", self.digests, DIGESTS)
        if self.look not in ("sampled", "every", "never"):
            raise UsageError(f"look must be 'sampled', 'every' or 'never', got {self.look!r}.")
        if self.steps is not None and self.steps < 1:
            raise UsageError(
                f"steps must be at least 1, got {self.steps}. Leave it out to run the script to its end."
            )

    def looks_at(self, step: int) -> bool:
        """Whether values are read at this step."""
        if self.look == "sampled":
            return step < _NUM_FIRST or step % _EVERY == 0
        return self.look == "every"

    def as_fields(self) -> dict[str, Any]:
        """Return the arguments that make this plan again, as plain values."""
        return asdict(self)


def _check_names(field: str, given: tuple[str, ...], known: tuple[str, ...]) -> None:
    unknown = [name for name in given if name not in known]
    if unknown:
        raise UsageError(f"{field} has {', '.join(map(repr, unknown))}. There are {', '.join(known)}.")
