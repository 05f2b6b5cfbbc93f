"""cuDNN's benchmark: tries its convolutions on the first batch of each shape. Not tested on a GPU."""

from collections.abc import Mapping
from typing import Any

import torch

from truestep.tune.knob import Choice, Knob, ScriptFacts, Skip
from truestep.tune.knobs._worth import too_small, without_gpu
from truestep.watch.script.tape import Tape


def propose(facts: ScriptFacts, chosen: Mapping[str, Any]) -> list[Choice] | Skip:  # noqa: ARG001
    """Propose it for convolutions on a GPU."""
    skip = without_gpu(facts, "cuDNN runs convolutions on NVIDIA GPUs")
    if skip is not None:
        return skip
    if facts.models and not any(model["has_conv"] for model in facts.models):
        return Skip(reason="the model has no convolution.")
    skip = too_small(facts, "forward", "backward", what="the model", best="a model without cost")
    return skip or [Choice(value=True, words="on")]


def apply(value: bool, tape: Tape) -> None:
    """Turn it on as each step begins: an assignment of the script's own cannot be caught."""

    def turn(*_: Any) -> None:
        torch.backends.cudnn.benchmark = value

    turn()
    tape.listen(forward_begins=turn)


KNOB = Knob(
    priority=130,
    about="Lets cuDNN time its kernels for each shape. Pays for convolutions with constant shapes.",
    propose=propose,
    lines=("torch.backends.cudnn.benchmark = {value}  # first thing after the imports",),
    changes_bits=True,
)
