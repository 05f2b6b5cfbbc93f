"""A knob: one speed setting that can be turned in somebody's script, and what is known before it is tried.

Owns the form of a knob and where knobs are found: in the files of `knobs`. Measures nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from truestep.errors import UsageError
from truestep.watch.script.tape import Tape

PHASES = ("data", "to_device", "forward", "backward", "optimizer", "other")
"""Where the time of a step goes."""

WORTH = 1.02
"""A knob is kept if its interval is better than this: less is not worth a line in a script."""


@dataclass(frozen=True, kw_only=True)
class ScriptFacts:
    """What is known of a script before a knob is turned: from its first steps as it stands."""

    cores: int
    device: str
    """The type of the device that the model is on: `cpu`, `cuda`."""
    threads: int
    step_s: float
    shares: Mapping[str, float] = field(default_factory=dict)
    """Of a step's time, by the names of `PHASES`; together 1."""
    loaders: tuple[Mapping[str, Any], ...] = ()
    """Of each loader: `class`, `workers`, `batch_size`, `pin_memory`, `persistent`, `prefetch`, `length`
    (batches in an epoch, or None), `is_training` (whether it shuffles), `is_ours` (in a
    `truestep.Loader`)."""
    optimizers: tuple[Mapping[str, Any], ...] = ()
    """Of each: `class`, `fused`, `foreach`, `can_fuse`, `can_foreach`, `parameters` (how many tensors)."""
    models: tuple[Mapping[str, Any], ...] = ()
    """Of each outermost module that is trained: `class`, `parameters` (numbers), `has_conv`, `has_conv2d`,
    `has_matmul`, `has_sparse` (gradients), `is_compiled`, `dtype`."""
    advised_workers: int | None = None
    """How many workers should be enough, predicted from where the time goes."""
    is_autocast: bool = False
    """Whether the script uses autocast itself."""
    keeps_gradients: bool = False
    """Whether the script calls `zero_grad(set_to_none=False)`."""
    matmul_precision: str = "highest"
    """As `truestep.base.bits.matmul_precision` tells it."""
    asked: tuple[str, ...] = ()
    """The knobs that the user named: then slow values are tried too."""
    uses_run: bool = False
    """Whether the script trains with `truestep.Run`, which reads `truestep.toml`."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One position of a knob."""

    value: Any
    """Plain: it goes through JSON."""
    words: str
    """As the table tells it: `bf16`, `2 workers`."""


@dataclass(frozen=True, kw_only=True)
class Skip:
    """Why a knob is not tried here, in words for the user."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Knob:
    """One setting."""

    name: str
    """As `--knobs` and the table name it."""
    priority: int = 100
    """Lower ones are tried first: cheap and likely ones at the beginning, compiling at the end."""
    about: str
    """One sentence: what it does, and when it pays."""
    propose: Callable[[ScriptFacts, Mapping[str, Any]], list[Choice] | Skip]
    """What is worth trying, given the facts and the values of knobs that are kept already."""
    lines: tuple[str, ...] | Callable[[Any], list[str]]
    """How a value is written in a script by hand: lines of Python with `{value}`, and where they go."""
    changes_bits: bool
    """Whether results may differ in their last bits; then learning is compared as well."""
    setting: Callable[[Any], tuple[str, Any] | None] | None = None
    """The line of `truestep.toml` for a value that `truestep.Run` takes from there; None for others."""
    plan: Callable[[Any], dict[str, Any]] | None = None
    """Fields of the plan of watching, in place of `apply`."""
    after: tuple[str, ...] = ()
    """Knobs that change what this one gives: it is tried again once one of them is kept."""
    apply: Callable[[Any, Tape], None] | None = None
    """Turns it in the script's process, unless it has a plan."""
    home: str = ""
    """`module:function` of `apply`; set when it is found."""

    def written(self, value: Any) -> list[str]:
        """Return the lines for a value."""
        if isinstance(self.lines, tuple):
            return [line.format(value=value) for line in self.lines]
        return self.lines(value)


@cache
def all_knobs() -> dict[str, Knob]:
    """Return every knob by name, in the order in which they are tried: cheap and likely ones first."""
    from truestep.tune import knobs  # noqa: PLC0415 - they import this module

    names = [item.name for item in iter_modules(knobs.__path__) if not item.name.startswith("_")]
    homes = [import_module(f"{knobs.__name__}.{name}") for name in names]
    found = [
        replace(knob, home=f"{knob.apply.__module__}:{knob.apply.__name__}") if knob.apply else knob
        for home in homes
        for knob in home.KNOBS
    ]
    return {knob.name: knob for knob in sorted(found, key=lambda knob: knob.priority)}


def pick(names: tuple[str, ...]) -> dict[str, Knob]:
    """Return the named knobs, all if none are named."""
    known = all_knobs()
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"unknown knob {', '.join(map(repr, unknown))}. Choose from {', '.join(known)}.")
    if names:
        return {name: known[name] for name in names}
    return known
