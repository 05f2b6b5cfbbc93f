"""A run's recipe and fingerprint as flat names and short texts, as servers of runs want them."""

import json
from collections.abc import Iterator
from typing import Any

from truestep.report.live.state import Live


def flat_settings(live: Live) -> dict[str, str]:
    """Return `recipe.seed` and the like, each as text."""
    both = {"recipe": live.facts.recipe, "fingerprint": live.facts.fingerprint}
    return dict(_flat("", both))


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(f"{prefix}.{key}" if prefix else str(key), item)
    else:
        yield prefix, value if isinstance(value, str) else json.dumps(value)
