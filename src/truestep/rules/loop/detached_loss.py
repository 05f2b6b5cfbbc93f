"""The backward pass starts at a loss that is detached from the model.

## What it finds
A backward pass that reaches no parameter. The loss was created from a number (`torch.tensor(loss.item(),
requires_grad=True)`), detached and then set to require a gradient, or lost its graph so that `backward`
fails.

## Why it matters
No parameter gets a gradient, so the optimizer's steps change nothing, apart from weight decay and momentum.

## How to fix
Call `backward()` on the loss that was computed from the model's outputs. Use `.item()` and `.detach()` only
for printing.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.loop._passes import find_passes, reads_gradients
from truestep.watch import Moment
from truestep.watch.evidence.facts.optimizing import (
    BackwardExamined,
    GradientsApplied,
    GraphCut,
    GraphMeasured,
)
from truestep.watch.evidence.facts.passes import BackwardPass, ForwardPass

RULE = Meta(
    code="LOOP12",
    severity="error",
    is_observed=lambda evidence: evidence.has(BackwardPass) or evidence.has(GraphCut),
    needs=(ForwardPass,),
    fix="Keep the loss a tensor with its graph: no .item(), torch.tensor(...) or .detach() before backward.",
)
_ERROR = "does not require grad"
_MIN_TIMES = 2


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find backward passes that begin at no graph, or at one that ends before the model."""
    if _ERROR in (evidence.first.error or "") and evidence.of(GraphCut):
        yield Finding.at(
            evidence.of(GraphCut)[-1],
            "the loss has no graph, so backward() cannot compute gradients",
            evidence=f"the script ended at this line with {evidence.first.error}",
        )
    trains = [moment for moment in evidence.of(GradientsApplied) if moment.facts.num_trainable]
    lines: dict[tuple[str | None, int | None], list[tuple[Moment[BackwardExamined], int]]] = {}
    reached = set()
    is_idle = not any(moment.facts.num_with_gradient for moment in trains)
    is_read = reads_gradients(evidence)
    for item in find_passes(evidence).values():
        if item.facts.optimizers or item.graph is None or item.graph.num_parameters:
            reached.add(item.place)
        elif _is_cut(item.graph, is_idle=is_idle, is_read=is_read) and any(
            moment.step >= item.moment.step for moment in trains
        ):
            lines.setdefault(item.place, []).append((item.moment, item.graph.num_nodes))
    for place, found in lines.items():
        if place not in reached and len(found) >= min(_MIN_TIMES, len(trains)):
            moment, num_nodes = found[0]
            size = f"{num_nodes} operations" if num_nodes else "no operations"
            yield Finding.at(
                moment,
                "the loss is detached from the model: its backward pass reaches no parameter",
                evidence=f"in {len(found)} checked passes the loss's graph had {size} and no parameter got a "
                "gradient",
            )


def _is_cut(graph: GraphMeasured, *, is_idle: bool, is_read: bool) -> bool:
    """Whether the graph ends at a loss or at outputs, and not at an input whose gradient is wanted."""
    is_one_number = graph.other_sizes == [1]
    return not is_read and (is_idle or is_one_number) if graph.num_nodes else is_one_number
