"""The graph of a loss, walked from its end.

Owns where the walk stops. Reads nodes only and keeps none.
"""

from collections import deque
from collections.abc import Collection, Iterator
from typing import Any

from torch import Tensor

_MAX_NODES = 64


def find_nodes(
    losses: tuple[Tensor, ...], names: Collection[str], *, limit: int = _MAX_NODES
) -> Iterator[Any]:
    """Yield the first nodes of these names on each way down from some losses, of so many nodes in all."""
    waiting = deque(loss.grad_fn for loss in losses if loss.grad_fn is not None)
    seen = set(waiting)
    num = 0
    while waiting and num < limit:
        node, num = waiting.popleft(), num + 1
        if type(node).__name__ in names:
            yield node
            continue
        after = [other for other, _ in node.next_functions if other is not None and other not in seen]
        seen.update(after)
        waiting += after
