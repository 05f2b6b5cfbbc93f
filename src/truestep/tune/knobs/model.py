"""Knobs of the model: autocast, memory layout, compilation."""

import shutil
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from truestep.run.train.place import Autocast
from truestep.tune.in_script.inside import on_model
from truestep.tune.knob import Choice, Knob, ScriptFacts, Skip
from truestep.tune.knobs._worth import too_small
from truestep.watch.script.tape import Tape

_COMPILERS = ("g++", "clang++", "c++")
_SLOW_TO_MAKE = "max-autotune-no-cudagraphs"
"""Times many kernels for each operation: tried only if it is asked for."""


def propose_autocast(facts: ScriptFacts, chosen: Mapping[str, Any]) -> list[Choice] | Skip:  # noqa: ARG001
    """Propose bf16 for models in float32 that multiply matrices."""
    if facts.is_autocast:
        return Skip(reason="the script already uses autocast.")
    if facts.models and not any(model["dtype"] == "float32" for model in facts.models):
        return Skip(reason=f"the model is in {facts.models[0]['dtype']}, not in float32.")
    if facts.models and not any(model["has_matmul"] or model["has_conv"] for model in facts.models):
        return Skip(reason="the model has no matrix product or convolution to run in 16 bits.")
    skip = too_small(facts, "forward", "backward", what="the model", best="a model without cost")
    return skip or [Choice(value="bf16", words="bf16")]


def autocast(value: str, tape: Tape) -> None:
    """Run each trained model's forward under autocast; what it returns is float32 again."""
    assert value == "bf16"
    on_model(tape, _run_in_bf16)


def _run_in_bf16(module: nn.Module) -> None:
    device = next(module.parameters()).device
    # Not fp16: its range is so small that losses must be scaled, at places that only the script knows, and
    # CPUs have next to no kernels for it. Where a GPU lacks bf16 torch says so, and the knob is refused.
    module.forward = Autocast(module.forward, device_type=device.type, dtype=torch.bfloat16)


def propose_channels_last(facts: ScriptFacts, chosen: Mapping[str, Any]) -> list[Choice] | Skip:  # noqa: ARG001
    """Propose it for models with two-dimensional convolutions."""
    if facts.models and not any(model["has_conv2d"] for model in facts.models):
        return Skip(reason="the model has no Conv2d.")
    skip = too_small(facts, "forward", "backward", what="the model", best="a model without cost")
    return skip or [Choice(value=True, words="channels last")]


def channels_last(value: bool, tape: Tape) -> None:
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


def propose_compile(facts: ScriptFacts, chosen: Mapping[str, Any]) -> list[Choice] | Skip:  # noqa: ARG001
    """Propose the default mode; others only to those who name this knob."""
    if facts.models and all(model["is_compiled"] for model in facts.models):
        return Skip(reason="the model is already compiled.")
    if facts.device == "cpu" and not any(map(shutil.which, _COMPILERS)):
        return Skip(reason="compiling for a CPU needs a C++ compiler, and none is installed. Install g++.")
    skip = too_small(facts, "forward", "backward", what="the model", best="a model without cost")
    if skip is not None:
        return skip
    modes = ["default", _SLOW_TO_MAKE] if "compile" in facts.asked else ["default"]
    return [Choice(value=mode, words="compiled" if mode == "default" else mode) for mode in modes]


def compile_lines(value: str) -> list[str]:
    """Return the call to write."""
    mode = "" if value == "default" else f'mode="{value}"'
    comma = ", " if mode else ""
    return [
        f"model.compile({mode})  # before training; state_dict names do not change",
        f"# If model is a plain nn.Sequential, this does nothing: model = torch.compile(model{comma}{mode})",
    ]


def compile_model(value: str, tape: Tape) -> None:
    """Compile each trained model just before its first forward pass, unless it is."""
    mode = None if value == "default" else value

    def compile_it(module: nn.Module) -> None:
        if module._compiled_call_impl is not None or type(module).__name__ == "OptimizedModule":
            return
        if type(module).__module__.startswith("torch.nn."):
            module._compiled_call_impl = torch.compile(_framed(module), mode=mode)
        else:
            module.compile(mode=mode)

    on_model(tape, compile_it)


def _framed(module: nn.Module) -> Callable[..., Any]:
    """Return its call in a frame of ours: the compiler skips those of torch's modules (pytorch#150915)."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return module._call_impl(*args, **kwargs)

    return call


KNOBS = (
    Knob(
        name="autocast",
        priority=60,
        about="Runs matrix products in bfloat16. Pays for large layers on processors that support it.",
        propose=propose_autocast,
        lines=(
            "with torch.autocast(x.device.type, dtype=torch.bfloat16):  # around forward pass and loss",
            "    loss = loss_of(model(x), y)",
            "loss.backward()  # outside the block",
        ),
        changes_bits=True,
        setting=lambda value: ("precision", value),
        apply=autocast,
    ),
    Knob(
        name="channels_last",
        priority=70,
        about="Stores images and convolution weights pixel by pixel. Pays for most convolutional networks.",
        propose=propose_channels_last,
        lines=(
            "model = model.to(memory_format=torch.channels_last)  # before you create the optimizer",
            "x = x.to(memory_format=torch.channels_last)  # images, before the forward pass",
        ),
        changes_bits=True,
        apply=channels_last,
    ),
    Knob(
        name="compile",
        priority=140,
        about="Compiles the model, which takes a while. Pays for many small operations in long runs.",
        propose=propose_compile,
        lines=compile_lines,
        changes_bits=True,
        setting=lambda value: ("compile", True) if value == "default" else None,
        apply=compile_model,
    ),
)
