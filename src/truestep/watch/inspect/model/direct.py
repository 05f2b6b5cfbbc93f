"""Modules whose `forward` is called directly: what is called in it looks like the outermost module.

Owns telling this from frames, at the steps that are looked at.
"""

import sys
from time import perf_counter_ns
from types import FrameType
from typing import Any

from torch import nn

from truestep.watch.evidence.facts.passes import ForwardCalledDirectly
from truestep.watch.script.tape import Tape

_MAX_FRAMES, _MAX_LOOKS, _MAX_NOTED = 12, 256, 64


def watch(tape: Tape) -> None:
    """Note direct calls of `forward`, with the hooks that they pass by."""
    looked: dict[int, int] = {}
    noted: set[tuple[int, str]] = set()

    def forward_begins(module: Any, _args: Any, _kwargs: Any) -> None:
        if not tape.is_looked_at or len(noted) >= _MAX_NOTED:
            return
        looked[tape.num_steps] = looked.get(tape.num_steps, 0) + 1
        if looked[tape.num_steps] > _MAX_LOOKS:
            return
        found = _find_forward(sys._getframe(1), module)
        if found is None:
            return
        owner, depth = found
        site, name = tape.sites.here(depth + 2), type(owner).__qualname__
        if (site, name) not in noted:
            noted.add((site, name))
            tape.mark(ForwardCalledDirectly(name, _num_hooks(owner)), site, perf_counter_ns())

    tape.listen_near(forward_begins=forward_begins)


def is_inside(owner: nn.Module) -> bool:
    """Whether the `forward` of a module is under way, called directly or not."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "forward" and frame.f_locals.get("self") is owner:
            return True
        frame = frame.f_back
    return False


def _find_forward(frame: FrameType | None, module: Any) -> tuple[nn.Module, int] | None:
    """Return the module in whose `forward` this is, and how many calls further up it was called."""
    for depth in range(1, _MAX_FRAMES):
        if frame is None:
            return None
        if frame.f_code.co_name == "forward":
            owner = frame.f_locals.get("self")
            if isinstance(owner, nn.Module) and owner is not module:
                return owner, depth
        frame = frame.f_back
    return None


def _num_hooks(module: nn.Module) -> int:
    kinds = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    return sum(len(kind) for kind in kinds)
