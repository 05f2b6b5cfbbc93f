"""Foreach optimizer: each operation of an update for all tensors in one call, instead of tensor by tensor."""

from collections.abc import Mapping
from typing import Any

import torch

from truestep.tune.knob import Choice, Knob, ScriptFacts, Skip
from truestep.tune.knobs._arguments import edit_optimizers
from truestep.tune.knobs._worth import too_small
from truestep.watch.script.tape import Tape


def propose(facts: ScriptFacts, chosen: Mapping[str, Any]) -> list[Choice] | Skip:
    """Propose it on a CPU, where it is not torch's own choice."""
    able = [item for item in facts.optimizers if item["can_foreach"] and hasattr(torch.optim, item["class"])]
    if facts.optimizers and not able:
        names = ", ".join(sorted({item["class"] for item in facts.optimizers}))
        return Skip(reason=f"{names} has no foreach form.")
    if chosen.get("fused") or (able and all(item["fused"] for item in able)):
        return Skip(reason="the optimizer is fused, which excludes foreach.")
    if facts.device == "cuda" or (able and all(item["foreach"] for item in able)):
        return Skip(reason="the optimizer already uses foreach, torch's default on a GPU.")
    skip = too_small(facts, "optimizer", what="the optimizer", best="one without cost")
    return skip or [Choice(value=True, words="foreach")]


def apply(value: bool, tape: Tape) -> None:  # noqa: ARG001
    """Make each optimizer that can so."""

    def change(arguments: dict[str, Any]) -> None:
        if not arguments.get("differentiable"):  # it excludes both
            arguments["foreach"] = value
            if value and arguments.get("fused"):
                arguments["fused"] = False

    edit_optimizers("foreach", change)


KNOB = Knob(
    priority=50,
    about="Updates all weights with few calls. Pays for models with many small tensors.",
    propose=propose,
    lines=("optimizer = AdamW(..., foreach={value})  # or another of torch's optimizers",),
    changes_bits=True,
)
