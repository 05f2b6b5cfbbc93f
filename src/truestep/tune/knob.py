"""A knob: one speed setting that can be turned in a script, and what is known before it is tried.

Owns the form of a knob. Which knobs there are is in `knobs`, and how each is turned in `in_script.turning`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

WORTH = 1.02
"""A knob is kept if its interval is better than this: less is not worth a line in a script."""


class Part(NamedTuple):
    """A part of a step that a setting can make faster."""

    name: str
    phases: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ScriptFacts:
    """What is known of a script before a knob is turned: from its first steps, unmodified."""

    cores: int
    device: str
    """The type of the device that the model is on: `cpu`, `cuda`."""
    threads: int
    step_s: float
    shares: Mapping[str, float] = field(default_factory=dict)
    """Of a step's time, by phase; together 1. Empty if they are not known."""
    loaders: tuple[Mapping[str, Any], ...] = ()
    """Of each loader: `class`, `workers`, `pin_memory`, `persistent`, `prefetch`, `length`
    (batches in an epoch, or None), `is_training` (whether it shuffles), `is_ours` (in a
    `truestep.Loader`)."""
    optimizers: tuple[Mapping[str, Any], ...] = ()
    """Of each: `class`, `fused`, `foreach`, `can_fuse`, `can_foreach`."""
    models: tuple[Mapping[str, Any], ...] = ()
    """Of each outermost module that is trained: `class`, `has_conv`, `has_conv2d`,
    `has_matmul`, `has_sparse` (gradients), `is_compiled`, `dtype`."""
    is_autocast: bool = False
    """Whether the script uses autocast itself."""
    matmul_precision: str = "highest"
    """As `truestep.base.bits.matmul_precision` returns it."""
    uses_run: bool = False
    """Whether the script trains with `truestep.Run`, which reads `truestep.toml`."""

    def too_small(self, part: Part) -> str:
        """Return why nothing can be gained in a part of a step; empty if it takes enough time, or unknown."""
        share = sum(self.shares.get(phase, 0.0) for phase in part.phases)
        if not self.shares or share >= 1 - 1 / WORTH:
            return ""
        return f"{part.name} takes {share:.1%} of a step, so even without it 2 % would not be gained."

    @property
    def training_loaders(self) -> list[Mapping[str, Any]]:
        """The loaders that training reads: the shuffled ones, or all if none is."""
        return [item for item in self.loaders if item.get("is_training", True)] or list(self.loaders)

    @property
    def torch_loaders(self) -> list[Mapping[str, Any]]:
        """Those of them whose arguments can be edited: torch's own, as the script makes them."""
        loaders = self.training_loaders
        return [item for item in loaders if item["class"] != "StatefulDataLoader" and not item.get("is_ours")]

    def num_workers(self, chosen: Mapping[str, Any]) -> int:
        """Return how many workers training's loaders have: the script's own number, or the chosen one."""
        now = max((item["workers"] for item in self.training_loaders), default=0)
        return int(chosen.get("workers", now))


@dataclass(frozen=True, kw_only=True)
class Knob:
    """One setting."""

    name: str
    """As `--knobs` and the table name it."""
    propose: Callable[[ScriptFacts, Mapping[str, Any]], list[Any] | str]
    """Which values are worth trying, given the facts and the values of knobs that are kept already; or why
    none is. Values are plain: they go through JSON."""
    words: Callable[[Any], str] = str
    """A value as the table shows it: `bf16`, `2 workers`."""
    lines: Callable[[Any], list[str]]
    """How a value is written in a script by hand."""
    changes_bits: bool
    """Whether results may differ in their last bits; then learning is compared as well."""
    part: Part | None = None
    """What it can make faster, at most down to nothing."""
    setting: str = ""
    """Its name in `truestep.toml`, if `truestep.Run` takes it from there."""
    plan: Callable[[Any], dict[str, Any]] | None = None
    """Fields of the plan of watching, in place of `home`."""
    after: tuple[str, ...] = ()
    """Knobs that change what this one gives: it is tried again once one of them is kept."""
    home: str = ""
    """`module:function` of what turns it in the script's process; by its name in `turning` if not given."""

    def offer(self, facts: ScriptFacts, chosen: Mapping[str, Any]) -> list[Any] | str:
        """Return the values that are worth trying, or why none is."""
        values = self.propose(facts, chosen)
        # Where the time goes is not known any more once a knob is kept that changes it.
        is_known = self.part is not None and not set(self.after) & chosen.keys()
        reason = facts.too_small(self.part) if self.part is not None and is_known else ""
        return values if isinstance(values, str) else reason or values

    @property
    def turned_by(self) -> str:
        """`module:function` of what turns it."""
        return self.home or f"truestep.tune.in_script.turning:{self.name}"
