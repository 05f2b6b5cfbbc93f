"""Precision of float32 matrix products: what is rounded inside, while inputs and results stay float32."""

from collections.abc import Mapping
from typing import Any

import torch

from truestep.tune.knob import Choice, Knob, ScriptFacts, Skip
from truestep.tune.knobs._arguments import fix_argument
from truestep.tune.knobs._worth import too_small
from truestep.watch.script.tape import Tape

_LEVELS = ("highest", "high", "medium")
_WORDS = {"high": "high (TF32)", "medium": "medium (bf16)"}


def propose(facts: ScriptFacts, chosen: Mapping[str, Any]) -> list[Choice] | Skip:
    """Propose the levels below the script's own that do something on this device."""
    if chosen.get("autocast") or facts.is_autocast:
        return Skip(reason="autocast already runs matrix products in 16 bits.")
    if facts.models and not any(model["has_matmul"] for model in facts.models):
        return Skip(reason="the model has no matrix product.")
    if facts.matmul_precision not in _LEVELS:
        return Skip(reason="the script sets it by backend (fp32_precision).")
    lower = _LEVELS[_LEVELS.index(facts.matmul_precision) + 1 :]
    levels = [level for level in lower if facts.device == "cuda" or _works_on_cpu(level)]
    if not lower:
        return Skip(reason=f"the script already sets it to {facts.matmul_precision}.")
    if not levels:
        return Skip(reason="this CPU has no instructions for float32 products of lower precision.")
    skip = too_small(facts, "forward", "backward", what="the model", best="a model without cost")
    return skip or [Choice(value=level, words=_WORDS[level]) for level in levels]


def _works_on_cpu(level: str) -> bool:
    """Whether oneDNN would round at this level here.

    "medium" takes bfloat16 for matrix products (pytorch#125386), "high" TensorFloat32, which needs AMX for
    floats of 16 bits. Without them both are what "highest" is. Convolutions are not touched.
    """
    if level == "high":
        return _has("_is_amx_fp16_supported")
    return _has("_is_avx512_bf16_supported") or _has("_is_amx_tile_supported")


def _has(question: str) -> bool:
    ask = getattr(torch.cpu, question, None)  # private, and not in every version
    return bool(ask is not None and ask())


def apply(value: str, tape: Tape) -> None:  # noqa: ARG001
    """Set it, whatever the script sets later."""
    fix_argument("torch.set_float32_matmul_precision", value=value)


KNOB = Knob(
    priority=80,
    about="Rounds inside float32 matrix products: to TF32 on a GPU, to bfloat16 (medium) on some CPUs.",
    propose=propose,
    lines=('torch.set_float32_matmul_precision("{value}")  # first thing after the imports',),
    changes_bits=True,
)
