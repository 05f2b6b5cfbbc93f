"""Layers as the rules of this family see them: what one activation shows in one look after the other.

Owns which of a layer's measurements belong together.
"""

from collections.abc import Iterator
from typing import Any

from truestep.rules import Evidence
from truestep.watch import Moment
from truestep.watch.evidence.facts.passes import LayerActivity


def lasting(
    evidence: Evidence, name: str, *, at_least: float
) -> Iterator[tuple[Moment[Any], dict[str, Any], float]]:
    """Yield layers whose share of that name was at least this in two looks, one after the other."""
    before: dict[tuple[int, int, str], float] = {}
    told: set[tuple[int, int, str]] = set()
    for moment in evidence.of(LayerActivity):
        rows = [row for row in moment.facts.value["layers"] if name in row]
        for place, row in enumerate(rows):
            key = (moment.facts.model, place, row["name"])
            share = min(row[name], before.get(key, -1.0))
            before[key] = row[name]
            if share >= at_least and key not in told:
                told.add(key)
                yield moment, row, share
