"""Where gradients will flow: the leaves under a loss, and which of them lie beside or above trained ones.

Owns the walk over autograd's nodes. Nothing of the graph is kept.
"""

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

_MAX_NODES = 30_000
_NONE, _MANY = 0, -1
_LEAF = "AccumulateGrad"
_OPAQUE = "CompiledFunction"


@dataclass(kw_only=True)
class GradientFlow:
    """The leaves under a loss."""

    leaves: list[Tensor] = field(default_factory=list)
    has_trained: bool = False
    beside: set[int] = field(default_factory=set)
    """Ids of untrained leaves that meet, in one operation, what depends on a trained one."""


def follow(losses: tuple[Tensor, ...], trained: Container[int]) -> GradientFlow | None:
    """Return what gradients of these losses reach; None if there is too much of it."""
    flow = GradientFlow()
    done: dict[Any, tuple[int, bool]] = {}
    stack = [(loss.grad_fn, False) for loss in losses if loss.grad_fn is not None]
    while stack:
        node, is_below_done = stack.pop()
        if is_below_done:
            done[node] = _classify(node, done, flow, trained)
        elif node not in done:
            done[node] = (_NONE, False)
            stack.append((node, True))
            below: Any = node.next_functions if node is not None else ()
            stack.extend((child, False) for child, _ in below if child is not None and child not in done)
            if len(done) > _MAX_NODES:
                return None
    return flow


def _classify(  # limits: private to this module
    node: Any, done: dict[Any, tuple[int, bool]], flow: GradientFlow, trained: Container[int]
) -> tuple[int, bool]:
    """Return the only leaf under a node, if it is one, and whether there are trained ones."""
    name = type(node).__name__
    if name == _LEAF:
        leaf = node.variable
        flow.leaves.append(leaf)
        is_trained = id(leaf) in trained
        flow.has_trained = flow.has_trained or is_trained
        return id(leaf), is_trained
    below = [done[child] for child, _ in node.next_functions if child is not None]
    num_trained = sum(is_trained for _, is_trained in below)
    if num_trained and len(below) > 1 and not name.startswith(_OPAQUE):
        flow.beside.update(leaf for leaf, is_trained in below if leaf > 0 and not is_trained)
    leaves = {leaf for leaf, _ in below if leaf != _NONE}
    only = leaves.pop() if len(leaves) == 1 else (_MANY if leaves else _NONE)
    return only, num_trained > 0
