"""Where the time of a whole run went, from its first start to its last line, kills included.

Owns the account and the one piece of advice. What a single step's time is made of is left to others.
"""

from itertools import pairwise

import numpy as np

from truestep.report.charts import REST
from truestep.report.markup import join, table, tag
from truestep.report.numerals import duration
from truestep.report.runs import Story
from truestep.report.sections import Section

_COMPUTING, _DATA, _SAVING, _AGAIN, _DOWN = (
    "computing",
    "waiting for data",
    "saving snapshots",
    "steps done again after a kill",
    "stopped and starting again",
)
_ADVICE = {
    _COMPUTING: "Faster steps would gain most: truestep tune measures what makes them faster.",
    _DATA: "Faster loading would gain most: truestep tune measures other numbers of workers.",
    _SAVING: "Fewer snapshots would gain most: set a larger every_s in Snapshots.",
    _AGAIN: "More frequent snapshots would gain most: set a smaller every_s in Snapshots.",
    _DOWN: "Quicker restarts would gain most: truestep run starts a killed process again at once.",
    REST: "Less between steps would gain most: evaluation, logging, and what comes before the first step.",
}


def account(story: Story) -> dict[str, float]:
    """Return seconds by what they were spent on; nothing if the record does not say."""
    lives = story.lives
    if not lives or not len(story.seconds):
        return {}
    # What lies between an end and the next start is a pause that somebody wanted, and no part of it.
    down = sum(after.time_s - before.last_s for before, after in pairwise(lives) if not before.is_ended)
    total = sum(life.last_s - life.time_s for life in lives) + down
    waited = float(np.nansum(story.waits))
    down += sum(life.loop_s - life.time_s for life in lives[1:] if life.loop_s is not None)
    found = {
        _COMPUTING: float(story.seconds[-1]) - waited - story.held_s,
        _DATA: waited,
        _SAVING: story.held_s,
        _AGAIN: sum(life.void_s for life in lives),
        _DOWN: down,
    }
    found[REST] = total - sum(found.values())
    is_sound = all(np.isfinite(item) and item >= -0.01 * total for item in found.values())
    return {name: max(0.0, item) for name, item in found.items()} if is_sound and total > 0 else {}


def goodput(story: Story) -> Section | None:
    """A table of the run's time, and the change that would gain most."""
    found = account(story)
    if not found:
        return None
    total = sum(found.values())
    rows = [
        (name, duration(item), f"{item / total:.1%}") for name, item in found.items() if item > 0.0005 * total
    ]
    useful = found[_COMPUTING] / total
    most = max((name for name in found if name != _COMPUTING), key=lambda name: found[name])
    advice = _ADVICE[most if found[most] > 0.05 * total else _COMPUTING]
    words = f"{useful:.0%} of {duration(total)} was spent computing steps that count. {advice}"
    body = join(
        [tag("p", words, class_="lead"), table(("time", "spent", "share"), rows, label="Time of the run")]
    )
    return Section(key="goodput", title="Where the time of the run went", body=body)
