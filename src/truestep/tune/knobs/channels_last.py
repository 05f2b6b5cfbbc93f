"""Channels last: images and weights of convolutions laid out pixel by pixel, as fast kernels want them."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from truestep.tune.in_script.inside import on_model
from truestep.tune.knob import Choice, Knob, ScriptFacts, Skip
from truestep.tune.knobs._worth import too_small
from truestep.watch.script.tape import Tape


def propose(facts: ScriptFacts, chosen: Mapping[str, Any]) -> list[Choice] | Skip:  # noqa: ARG001
    """Propose it for models with two-dimensional convolutions."""
    if facts.models and not any(model["has_conv2d"] for model in facts.models):
        return Skip(reason="the model has no Conv2d.")
    skip = too_small(facts, "forward", "backward", what="the model", best="a model without cost")
    return skip or [Choice(value=True, words="channels last")]


def apply(value: bool, tape: Tape) -> None:
    """Lay out the weights of each trained model with Conv2d, and every image that it is given."""
    if value:
        on_model(tape, _lay_out)


def _lay_out(module: nn.Module) -> None:
    if any(isinstance(part, nn.Conv2d) for part in module.modules()):
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        module.register_forward_pre_hook(lay_out_images, prepend=True, with_kwargs=True)


def lay_out_images(  # limits: torch calls it like this
    _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with images laid out anew. A function with a name: models with it are pickled."""
    return tuple(map(_laid_out, args)), {name: _laid_out(item) for name, item in kwargs.items()}


def _laid_out(item: Any) -> Any:
    if isinstance(item, torch.Tensor) and item.dim() == 4 and item.is_floating_point():
        return item.contiguous(memory_format=torch.channels_last)
    return item


KNOB = Knob(
    priority=70,
    about="Stores images and convolution weights pixel by pixel. Pays for most convolutional networks.",
    propose=propose,
    lines=(
        "model = model.to(memory_format=torch.channels_last)  # before you create the optimizer",
        "x = x.to(memory_format=torch.channels_last)  # images, before the forward pass",
    ),
    changes_bits=True,
)
