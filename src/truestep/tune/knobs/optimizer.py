"""Knobs of the optimizer: one kernel or few calls for an update, gradients dropped instead of zeroed."""

from collections.abc import Mapping
from typing import Any

import torch

from truestep.tune.knob import Choice, Knob, ScriptFacts, Skip
from truestep.tune.knobs._arguments import edit_optimizers, rewrite
from truestep.tune.knobs._worth import too_small
from truestep.watch.script.tape import Tape


def propose_fused(facts: ScriptFacts, chosen: Mapping[str, Any]) -> list[Choice] | Skip:  # noqa: ARG001
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


def fused(value: bool, tape: Tape) -> None:  # noqa: ARG001
    """Make each optimizer that can so."""

    def change(arguments: dict[str, Any]) -> None:
        if not arguments.get("differentiable"):  # it excludes both
            arguments.update(fused=value, foreach=None)

    edit_optimizers("fused", change)


def propose_foreach(facts: ScriptFacts, chosen: Mapping[str, Any]) -> list[Choice] | Skip:
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


def foreach(value: bool, tape: Tape) -> None:  # noqa: ARG001
    """Make each optimizer that can so."""

    def change(arguments: dict[str, Any]) -> None:
        if not arguments.get("differentiable"):  # it excludes both
            arguments["foreach"] = value
            if value and arguments.get("fused"):
                arguments["fused"] = False

    edit_optimizers("foreach", change)


def propose_set_to_none(facts: ScriptFacts, chosen: Mapping[str, Any]) -> list[Choice] | Skip:  # noqa: ARG001
    """Propose it to scripts that ask for zeros."""
    if not facts.keeps_gradients:
        return Skip(reason="gradients are already set to None: zero_grad() does it by default.")
    skip = too_small(facts, "optimizer", "backward", what="handling gradients", best="none of it")
    return skip or [Choice(value=True, words="None")]


def set_to_none(value: bool, tape: Tape) -> None:  # noqa: ARG001
    """Let every `zero_grad` do so."""
    for owner in ("torch.optim.Optimizer", "torch.nn.Module"):
        rewrite(f"{owner}.zero_grad", change=lambda arguments: arguments.update(set_to_none=value))


KNOBS = (
    Knob(
        name="fused",
        priority=30,
        about="Updates all weights in one kernel. Pays if the optimizer takes a large share of a step.",
        propose=propose_fused,
        lines=("optimizer = AdamW(..., fused={value})  # or another of torch's optimizers",),
        changes_bits=True,
        apply=fused,
    ),
    Knob(
        name="foreach",
        priority=50,
        about="Updates all weights with few calls. Pays for models with many small tensors.",
        propose=propose_foreach,
        lines=("optimizer = AdamW(..., foreach={value})  # or another of torch's optimizers",),
        changes_bits=True,
        apply=foreach,
    ),
    Knob(
        name="set_to_none",
        priority=120,
        about="Drops gradients between steps instead of zeroing them. Saves two passes through them.",
        propose=propose_set_to_none,
        lines=("optimizer.zero_grad(set_to_none={value})",),
        # A parameter without a gradient is passed over, where zeros would still decay it.
        changes_bits=True,
        apply=set_to_none,
    ),
)
