"""Compilation: `torch.compile` makes kernels for this model, which takes seconds to minutes at first."""

import shutil
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from truestep.tune.in_script.inside import on_model
from truestep.tune.knob import Choice, Knob, ScriptFacts, Skip
from truestep.tune.knobs._worth import too_small
from truestep.watch.script.tape import Tape

_COMPILERS = ("g++", "clang++", "c++")
_SLOW_TO_MAKE = "max-autotune-no-cudagraphs"
"""Times many kernels for each operation: tried only if it is asked for."""


def propose(facts: ScriptFacts, chosen: Mapping[str, Any]) -> list[Choice] | Skip:  # noqa: ARG001
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


def lines(value: str) -> list[str]:
    """Return the call to write."""
    mode = "" if value == "default" else f'mode="{value}"'
    comma = ", " if mode else ""
    return [
        f"model.compile({mode})  # before training; state_dict names do not change",
        f"# If model is a plain nn.Sequential, this does nothing: model = torch.compile(model{comma}{mode})",
    ]


def apply(value: str, tape: Tape) -> None:
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


KNOB = Knob(
    priority=140,
    about="Compiles the model, which takes a while at first. Pays for many small operations in long runs.",
    propose=propose,
    lines=lines,
    changes_bits=True,
    setting=lambda value: ("compile", True) if value == "default" else None,
)
