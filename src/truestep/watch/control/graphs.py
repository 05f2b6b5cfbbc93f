"""Which operation of a module is compiled wrongly.

Owns the search: the graphs that torch's compiler makes of the module are kept, each is compiled up to one of
its operations, and the first of them is looked for with which compiled code is beyond rounding.
"""

import copy
import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from truestep.watch.control import passes
from truestep.watch.control.passes import Call, Values


class Kept(NamedTuple):
    """A graph of the compiler and what it was called with."""

    module: fx.GraphModule
    inputs: list[Any]


def graphs_of(module: nn.Module, call: Call) -> list[Kept]:
    """Return the graphs of a forward and backward pass in the order in which they run."""
    from torch._dynamo.backends.common import aot_autograd  # noqa: PLC0415 - takes a second

    found: list[Kept] = []

    def keep(graph: fx.GraphModule, _examples: Any) -> Any:
        def run(inputs: list[Any]) -> Any:
            found.append(Kept(graph, passes.detached(list(inputs))))
            return graph(*inputs)

        run._boxed_call = True  # type: ignore[attr-defined] # inputs come as a list
        return run

    torch._dynamo.reset()
    twin = copy.deepcopy(module)
    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep)
    passes.values_of_call(twin, call, compiled=torch.compile(twin, backend=backend, dynamic=False))
    return found


def find_operation(
    module: nn.Module, call: Call, *, stage: str, is_in_time: Callable[[], bool]
) -> fx.Node | None:
    """Return the first operation with which compiled code is beyond rounding; None if there is none alone."""
    for kept in graphs_of(module, call):
        nodes = [node for node in kept.module.graph.nodes if node.op == "call_function"]
        if not nodes or not _is_wrong(kept, nodes[-1], stage):
            continue
        right, wrong = -1, len(nodes) - 1
        while wrong - right > 1:
            if not is_in_time():
                return None
            middle = (right + wrong) // 2
            if _is_wrong(kept, nodes[middle], stage):
                wrong = middle
            else:
                right = middle
        return _source(nodes[wrong])
    return None


def _source(node: fx.Node) -> fx.Node:
    """Return the operation that a part of a result is taken from."""
    while node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def _is_wrong(kept: Kept, last: fx.Node, stage: str) -> bool:
    """Whether a graph that ends with one of its nodes is beyond rounding when it is compiled."""
    part = _up_to(kept.module, last)

    def run(compute: Callable[..., Any], inputs: list[Any]) -> Values:
        torch.manual_seed(0)
        with torch.no_grad():
            outputs = passes.tensors_of(compute(*inputs))
        return passes.named_values({f"{place}": item for place, item in enumerate(outputs)})

    def others() -> Iterator[Values]:
        for seed in range(passes.NUM_NUDGED):
            changed = iter(passes.nudged([item for item in kept.inputs if isinstance(item, Tensor)], seed))
            yield run(part, [next(changed) if isinstance(item, Tensor) else item for item in kept.inputs])

    eager = run(part, passes.detached(kept.inputs))
    torch._dynamo.reset()
    compiled = run(torch.compile(part, backend=stage, dynamic=False), passes.detached(kept.inputs))
    told = passes.compare(eager, compiled, eager=eager, others=others(), eps=passes.eps_of(kept.inputs))
    return bool(told["is_beyond"])


def _up_to(module: fx.GraphModule, last: fx.Node) -> fx.GraphModule:
    """Return a graph that ends with a node, and gives what no operation in it uses."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        copies[node] = graph.node_copy(node, lambda used: copies[used])
        if node is last:
            break
    ends = [node for node in copies if node.op == "call_function" and copies.keys().isdisjoint(node.users)]
    graph.output(tuple(copies[node] for node in ends))
    return fx.GraphModule(module, graph)
