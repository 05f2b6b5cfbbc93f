"""The loss's graph grows with every step: it reaches back into earlier steps.

## What it finds
Backward passes at one line whose graph has more operations each time, some of them from before the last step.
A hidden state or a sum was not detached.

## Why it matters
Every step repeats the work of all steps before it. Time and memory grow until the process is killed, and
gradients flow through weights that have changed since.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.grouping import by_line
from truestep.watch import Moment
from truestep.watch.evidence.facts.optimizing import GraphMeasured

RULE = Meta(
    code="LOOP13",
    severity="error",
    needs=(GraphMeasured,),
    fix="Detach the state that is carried over: state = state.detach().",
)
_MIN_RISING = 5


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find graphs that grow."""
    lines = by_line(evidence.of(GraphMeasured))
    for moments in lines.values():
        rising = _rising(moments)
        if len(rising) > _MIN_RISING:
            counts = [moment.facts.num_nodes for moment in rising]
            yield Finding.at(
                rising[1],
                "the loss's graph grows with every step: a state carried between steps is not detached",
                evidence=f"operations in the loss's graph: {', '.join(map(str, counts[:6]))}, "
                f"at the end {counts[-1]}, of which {rising[-1].facts.num_old} ran "
                "before the last step",
            )


def _rising(moments: list[Moment[GraphMeasured]]) -> list[Moment[GraphMeasured]]:
    """Return the longest run of passes, one after the other, that grow by operations of earlier steps."""
    best: list[Moment[GraphMeasured]] = []
    run: list[Moment[GraphMeasured]] = []
    for moment in moments:
        run = [*run, moment] if run and _is_more(moment.facts, run[-1].facts) else [moment]
        best = max(best, run, key=len)
    return best


def _is_more(now: GraphMeasured, before: GraphMeasured) -> bool:
    return now.num_nodes > before.num_nodes and now.num_old > before.num_old and now.turn > before.turn
