"""Layers as the rules of this family see them: what one activation shows in one look after the other.

Owns which of a layer's measurements belong together.
"""

from collections.abc import Callable, Iterator

from truestep.rules import Evidence
from truestep.watch import Moment
from truestep.watch.evidence.facts.passes import LayerActivity, LayerState


def lasting(
    evidence: Evidence, share_of: Callable[[LayerState], float | None], *, at_least: float
) -> Iterator[tuple[Moment[LayerActivity], LayerState, float]]:
    """Yield layers whose share was at least this in two looks, one after the other."""
    before: dict[tuple[int, int, str], float] = {}
    reported: set[tuple[int, int, str]] = set()
    for moment in evidence.of(LayerActivity):
        shares = [(layer, share) for layer in moment.facts.layers if (share := share_of(layer)) is not None]
        for place, (layer, now) in enumerate(shares):
            key = (moment.facts.model, place, layer.operation)
            share = min(now, before.get(key, -1.0))
            before[key] = now
            if share >= at_least and key not in reported:
                reported.add(key)
                yield moment, layer, share
