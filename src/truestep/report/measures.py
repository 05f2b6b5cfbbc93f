"""What is computed from a story before it is drawn: speed, waiting, evaluations.

Owns the arithmetic over a run. Words and pictures are left to others.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from truestep.report.charts import REST
from truestep.report.readings import evaluation_curves
from truestep.report.runs import Story
from truestep.report.thin import Series

_NUM_WINDOWS = 240
_MIN_STEPS = 5


def speed(story: Story) -> Series:
    """Steps per second over windows of steps, each within one life of the run."""
    steps, seconds = story.loss.steps, story.seconds
    if len(steps) < 2:
        return Series(steps=steps[:0], values=seconds[:0])
    width = max(_MIN_STEPS, len(steps) // _NUM_WINDOWS)
    cuts = {int(np.searchsorted(steps, life.cursor, side="right")) for life in story.lives[:10_000]}
    edges = np.array(sorted(cuts | set(range(0, len(steps), width)) | {len(steps)}), dtype=np.int64)
    edges = edges[edges <= len(steps)]
    # The end of the step before is a window's beginning, but not across a pause: seconds leave pauses out.
    ends = np.concatenate([[0.0], seconds])
    spans = ends[edges[1:]] - ends[edges[:-1]]
    is_good = (spans > 0) & (np.diff(edges) >= min(_MIN_STEPS, width) // 2 + 1)
    rates = np.diff(edges)[is_good] / spans[is_good]
    return Series(steps=steps[edges[1:][is_good] - 1], values=rates)


def time_shares(story: Story) -> dict[str, float]:
    """Where the time of all steps went, as far as the record tells: waiting for data, the rest."""
    known = np.isfinite(story.waits)
    if not known.any() or not len(story.seconds):
        return {}
    total = float(np.diff(story.seconds, prepend=0.0)[known].sum())
    waited = float(story.waits[known].sum())
    if not total > 0 or not 0 <= waited <= total:
        return {}
    return {"waiting for data": waited / total, REST: 1 - waited / total}


def evaluation_series(story: Story) -> dict[str, Series]:
    """Evaluations that gave numbers, by name, over steps; of a dict or a list each entry by itself."""
    return {name: curve.series for name, curve in evaluation_curves(story).items()}


def flat(facts: Mapping[str, Any], *, prefix: str = "") -> dict[str, str]:
    """Return nested facts by dotted names."""
    found: dict[str, str] = {}
    for key, value in facts.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            found |= flat(value, prefix=f"{name}.")
        else:
            found[name] = value if isinstance(value, str) else json.dumps(value)
    return found
