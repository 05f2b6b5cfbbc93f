"""Autocast: matrix products and convolutions in 16 bits, weights and losses in 32."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from truestep.run.train.place import Autocast
from truestep.tune.in_script.inside import on_model
from truestep.tune.knob import Choice, Knob, ScriptFacts, Skip
from truestep.tune.knobs._worth import too_small
from truestep.watch.script.tape import Tape


def propose(facts: ScriptFacts, chosen: Mapping[str, Any]) -> list[Choice] | Skip:  # noqa: ARG001
    """Propose bf16 for models in float32 that multiply matrices."""
    if facts.is_autocast:
        return Skip(reason="the script already uses autocast.")
    if facts.models and not any(model["dtype"] == "float32" for model in facts.models):
        return Skip(reason=f"the model is in {facts.models[0]['dtype']}, not in float32.")
    if facts.models and not any(model["has_matmul"] or model["has_conv"] for model in facts.models):
        return Skip(reason="the model has no matrix product or convolution to run in 16 bits.")
    skip = too_small(facts, "forward", "backward", what="the model", best="a model without cost")
    return skip or [Choice(value="bf16", words="bf16")]


def apply(value: str, tape: Tape) -> None:
    """Run each trained model's forward under autocast; what it returns is float32 again."""
    assert value == "bf16"
    on_model(tape, _run_in_bf16)


def _run_in_bf16(module: nn.Module) -> None:
    device = next(module.parameters()).device
    # Not fp16: its range is so small that losses must be scaled, at places that only the script knows, and
    # CPUs have next to no kernels for it. Where a GPU lacks bf16 torch says so, and the knob is refused.
    module.forward = Autocast(module.forward, device_type=device.type, dtype=torch.bfloat16)


KNOB = Knob(
    priority=60,
    about="Runs matrix products in bfloat16. Pays for large layers on processors that support it.",
    propose=propose,
    lines=(
        "with torch.autocast(x.device.type, dtype=torch.bfloat16):  # around the forward pass and the loss",
        "    loss = loss_of(model(x), y)",
        "loss.backward()  # outside the block",
    ),
    changes_bits=True,
    setting=lambda value: ("precision", value),
)
