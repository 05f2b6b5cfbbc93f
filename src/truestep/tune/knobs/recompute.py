"""Recomputed activations: a block's are computed again in the backward pass instead of kept."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from truestep.run.train.place import Recompute
from truestep.tune.in_script.inside import on_model
from truestep.tune.knob import Choice, Knob, ScriptFacts, Skip
from truestep.tune.knobs._blocks import OWN, find
from truestep.watch.script.tape import Tape


def propose(facts: ScriptFacts, chosen: Mapping[str, Any]) -> list[Choice] | Skip:  # noqa: ARG001
    """Propose all outermost blocks of all models."""
    names = list(dict.fromkeys(name for model in facts.models for name in model.get("blocks", ())))
    if not names:
        return Skip(
            reason="the model has no stack of blocks to recompute. "
            "Blocks with BatchNorm are excluded: it would count each batch twice."
        )
    words = "blocks" if OWN in names else ", ".join(names)
    return [Choice(value=names, words=words if len(words) < 30 else f"{len(names)} blocks")]


def lines(value: list[str]) -> list[str]:
    """Return the call to write, and where."""
    if OWN in value:
        return ["model.gradient_checkpointing_enable()"]
    return [
        f"# in the model's forward, for {', '.join(value)}; import it from torch.utils.checkpoint",
        "x = checkpoint(block, x, use_reentrant=False)  # instead of x = block(x)",
    ]


def apply(value: list[str], tape: Tape) -> None:
    """Recompute these blocks of each trained model, from its second forward pass on.

    The first shows which of them write to their buffers: what counts passes would count one too many.
    """
    waiting: list[tuple[nn.Module, list[int]]] = []

    def wait(module: nn.Module) -> None:
        if OWN in value and getattr(module, "supports_gradient_checkpointing", False):
            model: Any = module
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            return
        found = {block: None for pattern in value for block in find(module, pattern)}
        waiting.extend((block, _writes(block)) for block in found)

    def begin(*_: Any) -> None:
        for block, before in waiting:
            if _writes(block) == before:
                block.forward = Recompute(block.forward)
        waiting.clear()

    on_model(tape, wait)
    tape.listen(forward_ends=begin)


def _writes(block: nn.Module) -> list[int]:
    """Return how often each of its buffers was written to."""
    return [buffer._version for buffer in block.buffers()]


KNOB = Knob(
    priority=150,
    about="Recomputes activations instead of storing them. Saves memory for a larger batch; costs time.",
    propose=propose,
    lines=lines,
    changes_bits=False,
    purpose="memory",
)
