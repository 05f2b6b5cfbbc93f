"""Backward passes as several rules need them: what the book of gradients and the walk over graphs say.

Owns putting the two together, and telling whether the script reads gradients itself.
"""

import re
from dataclasses import dataclass

from truestep.rules import Evidence
from truestep.rules.kit.roster import find_optimizer
from truestep.watch import Moment
from truestep.watch.evidence.facts.optimizing import (
    BackwardExamined,
    ClippingCalled,
    GradientsApplied,
    GradientsUnscaled,
    GradientsZeroed,
    GraphMeasured,
    OptimizerStep,
    StepSkipped,
)

_LAST_LOOKED_AT = 2
_ADAPTIVE = re.compile("ada|rms|rprop|lion|lamb|lars|sophia|muon|shampoo", re.IGNORECASE)
"""Optimizers that divide a gradient by its own size."""


@dataclass(frozen=True)
class Pass:
    """One backward pass that was looked at."""

    moment: Moment[BackwardExamined]
    graph: GraphMeasured | None

    @property
    def facts(self) -> BackwardExamined:
        """What was seen of it."""
        return self.moment.facts

    @property
    def place(self) -> tuple[str | None, int | None]:
        """Its line."""
        return self.moment.file, self.moment.line


def find_passes(evidence: Evidence) -> dict[int, Pass]:
    """Return all passes that were looked at, by their numbers."""
    graphs = {moment.facts.backward: moment.facts for moment in evidence.of(GraphMeasured)}
    return {
        moment.facts.number: Pass(moment, graphs.get(moment.facts.number))
        for moment in evidence.of(BackwardExamined)
    }


def used_places(evidence: Evidence, passes: dict[int, Pass]) -> set[tuple[str | None, int | None]]:
    """Return the lines of backward passes that steps have used."""
    numbers = [number for moment in evidence.of(GradientsApplied) for number in moment.facts.passes]
    return {passes[number].place for number in numbers if number in passes}


def usual_number(evidence: Evidence, optimizer: int) -> int:
    """Return how many backward passes an optimizer's step most uses."""
    steps = [moment for moment in evidence.of(GradientsApplied) if moment.facts.optimizer == optimizer]
    return max((len(moment.facts.passes) for moment in steps), default=0)


def is_adaptive(evidence: Evidence, optimizer: int) -> bool:
    """Whether an optimizer divides by the gradient's size, or may: a factor of the loss then does nothing."""
    found = find_optimizer(evidence, optimizer)
    return found is None or bool(_ADAPTIVE.search(found.class_name))


def is_looked_at(step: int) -> bool:
    """Whether each operation of a step is known."""
    return step <= _LAST_LOOKED_AT


def reads_gradients(evidence: Evidence) -> bool:
    """Whether the script does something with gradients besides clipping, in the steps that are looked at.

    It may where no backward pass was noted, as for a large model.
    """
    kinds = (ClippingCalled, GradientsZeroed, GradientsUnscaled, OptimizerStep, StepSkipped)
    known = {(moment.file, moment.line) for moment in evidence.of(*kinds)}
    gradients: set[int] = set()
    # Those of `torch.autograd.grad` with a graph, as for a penalty on the slope, are of inputs.
    has_slopes = any(moment.facts.num_grad_calls for moment in evidence.of(BackwardExamined))
    for operation in evidence.operations:
        if operation.phase == "backward":
            gradients.add(operation.index)
        elif operation.phase != "optimizer" and any(
            item.producer in gradients and not (item.has_grad and has_slopes) for item in operation.ins
        ):
            if operation.line is not None and (operation.file, operation.line) not in known:
                return True
            gradients.add(operation.index)  # clipping writes them again
    graphs = [item.graph for item in find_passes(evidence).values()]
    return not gradients and any(graph is not None and graph.num_parameters for graph in graphs)
