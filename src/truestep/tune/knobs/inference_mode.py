"""Inference mode: evaluation without what autograd keeps of each tensor, even under `no_grad`."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map
from torch.utils.dlpack import from_dlpack

from truestep.tune.knob import Choice, Knob, ScriptFacts, Skip
from truestep.tune.knobs._evaluation import in_evaluation
from truestep.watch.script.tape import Tape

_NUM_SEARCHED = 2
"""Passes of each model after which tensors are looked for that it has kept."""


def propose(facts: ScriptFacts, chosen: Mapping[str, Any]) -> list[Choice] | Skip:  # noqa: ARG001
    """Propose it where evaluation was seen under `no_grad`."""
    if facts.evaluates == "inference_mode":
        return Skip(reason="evaluation already runs in inference mode.")
    if facts.evaluates != "no_grad":
        return Skip(reason="no evaluation (eval mode, no_grad) ran in the observed steps.")
    return [Choice(value=True, words="inference mode")]


def apply(value: bool, tape: Tape) -> None:
    """Run passes for evaluation in inference mode; what they return can be used anywhere, as before."""
    num_passes: dict[int, int] = {}

    def make(module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def infer(*args: Any, **kwargs: Any) -> Any:
            with torch.inference_mode():
                output = forward(*args, **kwargs)
            num_passes[id(module)] = num_passes.get(id(module), 0) + 1
            if num_passes[id(module)] <= _NUM_SEARCHED:
                _free_kept(module)
            return tree_map(_free, output)

        return infer

    if value:
        in_evaluation(tape, make)


def _free(item: Any) -> Any:
    """Return a tensor of inference as one that autograd takes, in the same memory."""
    if isinstance(item, torch.Tensor) and item.is_inference():
        return from_dlpack(item)
    return item


def _free_kept(module: nn.Module) -> None:
    """Free what a model has made and kept for later, in training too: masks, positions."""
    for part in module.modules():
        for names in (vars(part), part._buffers):
            kept = {name: item for name, item in names.items() if isinstance(item, torch.Tensor)}
            names.update({name: _free(item) for name, item in kept.items() if item.is_inference()})


KNOB = Knob(
    priority=160,
    about="Evaluates without autograd's record of each tensor. Pays a little, for many small operations.",
    propose=propose,
    lines=(
        "with torch.inference_mode():  # around evaluation, instead of torch.no_grad()",
        "    output = model(x)",
    ),
    changes_bits=False,
    purpose="inference",
)
