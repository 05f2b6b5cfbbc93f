"""Blocks: the parts of a model, one after the other, whose activations can be computed twice.

Owns which parts these are and how they are named. Computing twice is `recompute`'s.
"""

from collections.abc import Iterator

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

OWN = "own"
"""In place of patterns: the model has a switch of its own, as those of Hugging Face have."""
_STACKS = (nn.ModuleList, nn.Sequential)


def blocks(model: nn.Module) -> list[str]:
    """Return names or patterns (`layers.*`) of a model's outermost blocks; empty if it has none."""
    if getattr(model, "supports_gradient_checkpointing", False):
        return [OWN]
    return list(_patterns(model, ""))


def find(model: nn.Module, pattern: str) -> list[nn.Module]:
    """Return the blocks that a pattern of `blocks` means in this model."""
    if not pattern.endswith("*"):
        return [part for name, part in model.named_modules() if name == pattern]
    prefix = pattern.removesuffix("*").removesuffix(".")
    stacks = [part for name, part in model.named_modules() if name == prefix]
    return [block for stack in stacks for block in stack.children() if _is_block(block)]


def _patterns(module: nn.Module, prefix: str) -> Iterator[str]:
    children = dict(module.named_children())
    able = [name for name, child in children.items() if _is_block(child)]
    if isinstance(module, _STACKS) and len(able) > 1:
        if len(able) == len(children):
            yield f"{prefix}*"
        else:
            yield from (prefix + name for name in able)
        return
    for name, child in children.items():
        yield from _patterns(child, f"{prefix}{name}.")


def _is_block(module: nn.Module) -> bool:
    """Whether it has parts and weights, and no statistics that a second pass would count twice."""
    parts = list(module.modules())
    counts = any(isinstance(part, _NormBase) and part.track_running_stats for part in parts)
    return len(parts) > 1 and not counts and any(True for _ in module.parameters())
