"""Derivatives for inputs: slopes, forces, residuals of equations, which a loss may contain.

Owns which calls of `torch.autograd.grad` are of that kind.
"""

from typing import Any

from torch import Tensor, nn

from truestep.watch.evidence.facts.passes import DerivativeTaken
from truestep.watch.hooks.table import WINDOW, Hook, Observation, put
from truestep.watch.script.autograd import find_nodes
from truestep.watch.script.tape import Tape
from truestep.watch.script.under_way import GOES_BACK

_MAX_NODES, _CREATE_GRAPH = 4096, 4


def watch(tape: Tape) -> None:
    """Note, in the steps whose operations are looked at, whether derivatives keep a graph."""
    hook = Hook("torch.autograd.grad", _Derivatives.observe, rank=GOES_BACK, when=WINDOW)
    put(tape, [hook], _Derivatives(tape))


class _Derivatives:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def observe(self, /, *args: Any, **kwargs: Any) -> Observation:
        """Derivatives are about to be computed."""
        recorder = self._tape.recorder
        if recorder is None or not recorder.is_open or self._tape.under_way.is_in_backward:
            return
        outputs, inputs = (_listed(args, kwargs, place) for place in enumerate(("outputs", "inputs")))
        is_asked = args[_CREATE_GRAPH] if len(args) > _CREATE_GRAPH else kwargs.get("create_graph", False)
        if (
            inputs
            and not any(isinstance(item, nn.Parameter) for item in inputs)
            and self._is_trained(outputs)
        ):
            self._tape.note(DerivativeTaken(bool(is_asked)))
        yield

    def _is_trained(self, outputs: tuple[Tensor, ...]) -> bool:
        """Whether weights of an optimizer have made the outputs."""
        found = [kept() for _, kept in [*self._tape.things("optimizer").values()]]
        groups = [group for optimizer in found if optimizer is not None for group in optimizer.param_groups]
        owned = {id(item) for group in groups for item in group["params"]}
        leaves = find_nodes(outputs, ("AccumulateGrad",), limit=_MAX_NODES)
        return any(id(node.variable) in owned for node in leaves)


def _listed(args: tuple[Any, ...], kwargs: dict[str, Any], place: tuple[int, str]) -> tuple[Tensor, ...]:
    number, name = place
    given = args[number] if len(args) > number else kwargs.get(name)
    listed = given if isinstance(given, list | tuple) else (given,)
    return tuple(item for item in listed if isinstance(item, Tensor))
