"""Pinned memory: batches in pages that a GPU can read by itself. Not tested on a GPU."""

from collections.abc import Mapping
from typing import Any

from truestep.tune.knob import Choice, Knob, ScriptFacts, Skip
from truestep.tune.knobs._arguments import rewrite
from truestep.tune.knobs._worth import too_small, torch_loaders, without_gpu
from truestep.watch.script.tape import Tape


def propose(facts: ScriptFacts, chosen: Mapping[str, Any]) -> list[Choice] | Skip:  # noqa: ARG001
    """Propose it on a GPU, where copies to it take time."""
    skip = without_gpu(facts, "pinned memory speeds up copies to a GPU")
    if skip is not None:
        return skip
    loaders = torch_loaders(facts)
    if not loaders:
        return Skip(reason="the script does not create a DataLoader of torch.")
    if all(item["pin_memory"] for item in loaders):
        return Skip(reason="the script already pins its batches.")
    skip = too_small(facts, "to_device", "data", what="copying data to the GPU", best="a copy without cost")
    return skip or [Choice(value=True, words="pinned")]


def apply(value: bool, tape: Tape) -> None:  # noqa: ARG001
    """Build each DataLoader so."""
    loader = "torch.utils.data.DataLoader.__init__"
    rewrite(loader, change=lambda arguments: arguments.update(pin_memory=value))


KNOB = Knob(
    priority=110,
    about="Puts batches into memory that a GPU can read directly. Pays if copies to the GPU take time.",
    propose=propose,
    lines=(
        "loader = DataLoader(..., pin_memory={value})",
        "x = x.to(device, non_blocking=True)  # for each tensor of a batch",
    ),
    changes_bits=False,
)
