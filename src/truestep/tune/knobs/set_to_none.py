"""Gradients set to None between steps, instead of filled with zeros and added to."""

from collections.abc import Mapping
from typing import Any

from truestep.tune.knob import Choice, Knob, ScriptFacts, Skip
from truestep.tune.knobs._arguments import rewrite
from truestep.tune.knobs._worth import too_small
from truestep.watch.script.tape import Tape


def propose(facts: ScriptFacts, chosen: Mapping[str, Any]) -> list[Choice] | Skip:  # noqa: ARG001
    """Propose it to scripts that ask for zeros."""
    if not facts.keeps_gradients:
        return Skip(reason="gradients are already set to None: zero_grad() does it by default.")
    skip = too_small(facts, "optimizer", "backward", what="handling gradients", best="none of it")
    return skip or [Choice(value=True, words="None")]


def apply(value: bool, tape: Tape) -> None:  # noqa: ARG001
    """Let every `zero_grad` do so."""
    for owner in ("torch.optim.Optimizer", "torch.nn.Module"):
        rewrite(f"{owner}.zero_grad", change=lambda arguments: arguments.update(set_to_none=value))


KNOB = Knob(
    priority=120,
    about="Drops gradients between steps instead of zeroing them. Saves two passes through them.",
    propose=propose,
    lines=("optimizer.zero_grad(set_to_none={value})",),
    # A parameter without a gradient is passed over, where zeros would still decay it.
    changes_bits=True,
)
