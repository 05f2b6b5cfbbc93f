"""Evidence for PROBE11 learning-test."""

from typing import Any

from truestep.rules import Evidence
from truestep.watch import Moment, Process
from truestep.watch.evidence.facts.passes import LearningTested


def _recorded(*facts: LearningTested) -> Evidence:
    where: dict[str, Any] = {
        "step": 7,
        "at_s": 0.1,
        "took_s": 0.0,
        "file": "train.py",
        "line": 8,
        "function": "",
    }
    return Evidence(
        processes=[Process(pid=1, argv=[], moments=[Moment(facts=item, **where) for item in facts])]
    )


_STUCK = LearningTested(0, "", "cross entropy", 10, [2.3, 2.3, 2.3], [2.3, 2.3], [2.3, 2.3], 120, 8, 4.0)
BUGGY = _recorded(_STUCK)
CLEAN = _recorded()
