"""Fused optimizer: one kernel for all of an update, instead of one operation after the other."""

from collections.abc import Mapping
from typing import Any

import torch

from truestep.tune.knob import Choice, Knob, ScriptFacts, Skip
from truestep.tune.knobs._arguments import edit_optimizers
from truestep.tune.knobs._worth import too_small
from truestep.watch.script.tape import Tape


def propose(facts: ScriptFacts, chosen: Mapping[str, Any]) -> list[Choice] | Skip:  # noqa: ARG001
    """Propose it for optimizers of torch that can."""
    able = [item for item in facts.optimizers if item["can_fuse"] and hasattr(torch.optim, item["class"])]
    if facts.optimizers and not able:
        names = ", ".join(sorted({item["class"] for item in facts.optimizers}))
        return Skip(reason=f"{names} has no fused form.")
    if able and all(item["fused"] for item in able):
        return Skip(reason="the optimizer is already fused.")
    if any(model.get("has_sparse") for model in facts.models):
        return Skip(reason="the model has sparse gradients, which fused optimizers refuse.")
    skip = too_small(facts, "optimizer", what="the optimizer", best="one without cost")
    return skip or [Choice(value=True, words="fused")]


def apply(value: bool, tape: Tape) -> None:  # noqa: ARG001
    """Make each optimizer that can so."""

    def change(arguments: dict[str, Any]) -> None:
        if not arguments.get("differentiable"):  # it excludes both
            arguments.update(fused=value, foreach=None)

    edit_optimizers("fused", change)


KNOB = Knob(
    priority=30,
    about="Updates all weights in one kernel. Pays if the optimizer takes a large share of a step.",
    propose=propose,
    lines=("optimizer = AdamW(..., fused={value})  # or another of torch's optimizers",),
    changes_bits=True,
)
