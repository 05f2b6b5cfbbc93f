"""What is known of a script before a setting is tried: from one run of it, unmodified.

Owns how long that run is. What the script's process reports is in `in_script.facts_so_far`.
"""

import time
from collections.abc import Callable
from statistics import fmean, median
from typing import Any

from truestep import watch
from truestep.base.cores import num_cores
from truestep.tune.knob import ScriptFacts
from truestep.tune.search.race import Contender
from truestep.watch.evidence.phases import phase_shares

_PATIENCE_S = 600.0
_TIMED_S = 1.0
_MIN_WARM, _MAX_WARM = 6, 64
_MIN_TIMED, _MAX_TIMED = 10, 400
_MIN_STEPS = 6


def look_at(script: watch.Script, *, on_status: Callable[[str], None] = lambda _: None) -> ScriptFacts:
    """Run a script for about a second of steps after a warm-up, and return what is known of it then.

    A script that fails or makes too few steps is refused.
    """
    on_status("measuring where the time goes")
    with Contender(script, {}, knobs={}) as runner:
        begun = _run(runner, until_s=time.monotonic() + _PATIENCE_S)
        if runner.code not in (None, 0):
            raise runner.error
        process = runner.leave()
        if process is None or runner.num_steps < _MIN_STEPS:
            raise runner.error
        seen: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in runner.facts.items()
        }
        # An accelerator works on after a pass has returned, so shares of time would mislead.
        shares = phase_shares(process.moments, begin=begun + 1) if seen["device"] == "cpu" else {}
        step_s = fmean(runner.seconds[begun:])
        return ScriptFacts(cores=num_cores(), step_s=step_s, shares=shares, **seen)


def _run(runner: Contender, *, until_s: float) -> int:
    """Run a script past its warm-up and time it; return how many steps were the warm-up."""
    runner.start()
    if runner.first(until_s=until_s) is not None:
        # Batches that workers have prepared by now: the steps that get them do not wait for data.
        loaders = runner.facts["loaders"]
        ahead = max((item["workers"] * (item["prefetch"] or 0) for item in loaders), default=0)
        turn = runner.advance(min(max(_MIN_WARM, ahead), _MAX_WARM), until_s=until_s)
        begun = runner.num_steps
        if turn is not None:
            num = round(_TIMED_S / median(turn.seconds))
            runner.advance(min(max(_MIN_TIMED, num), _MAX_TIMED), until_s=until_s)
            return begun
    return runner.num_steps // 4  # all that the script makes
