"""How many errors and warnings `check` found by which step: a curve beside those of a script.

Owns its name. Reads records that anybody may have written, so every field may be of any kind.
"""

from bisect import bisect_right
from typing import Any

from truestep.report.curve import Curve
from truestep.report.runs import Facts
from truestep.report.verdicts import findings_in

CURVE = "truestep/findings"


def findings_curve(facts: Facts) -> Curve:
    """Return how many errors and warnings `check` had found by the first step, the last, and each between."""
    curve = Curve()
    event = facts.last_answer("check") or {}
    steps = sorted(_step(item) for item in findings_in(event) if item.get("severity") != "info")
    for step in sorted({0, _step({"step": event.get("steps")}), *steps}):
        curve.add(step, float(bisect_right(steps, step)))
    return curve


def _step(item: dict[str, Any]) -> int:
    """Return the step, counted from 0 as the curves of exports are; what is none is the first."""
    step = item.get("step")
    return max(step - 1, 0) if isinstance(step, int) and step < 2**53 else 0
