"""The graph of a loss, walked from its end.

Owns where the walk stops. Reads nodes only and keeps none.
"""

from collections.abc import Collection, Iterator
from typing import Any

from torch import Tensor

_MAX_NODES = 64


def find_nodes(losses: tuple[Tensor, ...], names: Collection[str]) -> Iterator[Any]:
    """Yield the first nodes of these names on each way down from some losses."""
    waiting: list[Any] = [loss.grad_fn for loss in losses if loss.grad_fn is not None]
    num = 0
    while waiting and num < _MAX_NODES:
        node, num = waiting.pop(0), num + 1
        if type(node).__name__ in names:
            yield node
        else:
            waiting += [after for after, _ in node.next_functions if after is not None]
