"""Claim: a noisy neighbour does not make `tune` keep a knob that does not pay.

A busy process works in bursts of random length on the very core on which `tune` and its script run: while it
works, the script has half of that core. (On a core of its own it would be no noise for a script with one
thread.) Three knobs are planted: one does nothing, one makes steps 5 % slower, one is a real one (foreach)
that gains nothing on this script. No repeat may keep any of them. Stated beside it: how often a knob that
makes steps 20 % faster is found under the same noise; and, to show that the noise matters, how often the knob
that does nothing would have been kept by whoever times one setting after the other and takes what is 2 %
faster.
About two minutes a repeat; with --keep FILE it goes on where it was stopped.
Exit code: 0 the claim holds, 1 it fails, or a knob could not be measured in the budget.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from typing import Any

from measure import Claim, Row, Sheet, report
from tune_scripts import Kept, as_interval, elsewhere, extra_knob, say, script_of

from truestep.tune.knob import WORTH, Choice, Knob, all_knobs
from truestep.tune.search.race import Contender
from truestep.tune.search.search import TuneOptions, tune

SHORTEST_S, LONGEST_S = 0.2, 3.0
NAIVE_S = 3.0
SCRIPT = "working"
Found = dict[str, Any]


def planted() -> dict[str, Knob]:
    """Return the three knobs that must not be kept."""
    real = all_knobs()["foreach"]
    knobs = (
        extra_knob("nothing", {}, "does nothing"),
        extra_knob("slower", {"units": 63}, "5 % slower"),
        # As if its share of a step were worth a try: it is not, and that would end the trial.
        replace(real, propose=lambda _facts, _chosen: [Choice(value=True, words="foreach")]),
    )
    return {knob.name: knob for knob in knobs}


def faster() -> dict[str, Knob]:
    """Return the knob that must be found."""
    return {"faster": extra_knob("faster", {"units": 50}, "20 % faster")}


def be_neighbour(seed: int) -> None:
    """Keep the core busy, in bursts, until the one who started this is gone."""
    order = random.Random(seed)
    parent = os.getppid()
    while os.getppid() == parent:
        end = time.monotonic() + order.uniform(SHORTEST_S, LONGEST_S)
        while time.monotonic() < end:
            sum(range(1000))
        time.sleep(order.uniform(SHORTEST_S, LONGEST_S))


@contextmanager
def neighbour(seed: int, *, is_there: bool) -> Iterator[None]:
    """Have a noisy neighbour, or a quiet one that does not exist."""
    if not is_there:
        yield
        return
    with subprocess.Popen([sys.executable, __file__, "--neighbour", str(seed)]) as process:
        try:
            yield
        finally:
            process.kill()


def run_tune(knobs: dict[str, Knob], budget_s: float) -> Found:
    """Tune the script with planted knobs; return what was kept, and each knob's ratio alone."""
    result = tune(script_of(SCRIPT), TuneOptions(budget_s=budget_s, knobs=knobs))
    trials: dict[str, Any] = {}
    for trial in result.trials:
        ratio = as_interval(trial.found) if trial.found is not None else None
        trials.setdefault(trial.knob, {"status": trial.status, "reason": trial.reason, "ratio": ratio})
    return {"kept": sorted(result.settings), "trials": trials, "seconds": result.seconds}


def run_naively() -> Found:
    """Time the script, then the script with the knob that does nothing, as one does by hand."""
    knobs = planted()
    both: tuple[dict[str, Any], ...] = ({}, {"nothing": {}})
    step_s = [_timed(settings, knobs) for settings in both]
    return {"ratio": step_s[0] / step_s[1]}


def _timed(settings: dict[str, Any], knobs: dict[str, Knob]) -> float:
    """Return the median step of some seconds, the first ones left out."""
    with Contender(script_of(SCRIPT), settings, knobs=knobs) as runner:
        runner.start()
        until_s = time.monotonic() + 120
        if runner.first(until_s=until_s) is None or runner.advance(20, until_s=until_s) is None:
            sys.exit(f"the script made no step:\n{runner.tail}")
        seconds: list[float] = []
        while sum(seconds) < NAIVE_S:
            turn = runner.advance(10, until_s=until_s)
            if turn is None:
                sys.exit(f"the script ended:\n{runner.tail}")
            seconds += turn.seconds
    return median(seconds)


def repeat(number: int, kept: Kept, *, options: argparse.Namespace) -> dict[str, Found]:
    """Do one repeat, each part of it with the neighbour."""
    parts: dict[str, Callable[[], Found]] = {
        "planted": lambda: run_tune(planted(), options.budget),
        "faster": lambda: run_tune(faster(), options.budget),
        "naive": run_naively,
    }
    if number >= options.power:
        del parts["faster"]
    found = {}
    for place, (name, make) in enumerate(parts.items()):

        def noisy(make: Callable[[], Found] = make, seed: int = 10 * number + place) -> Found:
            with neighbour(seed, is_there=not options.quiet):
                return make()

        found[name] = kept.part(f"{number}/{name}", noisy)
    say(f"repeat {number + 1}: " + "; ".join(f"{name} {in_words(part)}" for name, part in found.items()))
    return found


def in_words(part: Found) -> str:
    if "trials" not in part:
        return f"{part['ratio']:.3f}"
    told = (f"{name} {_middle(trial)} {trial['status']}" for name, trial in part["trials"].items())
    return f"{', '.join(told)}; kept: {', '.join(part['kept']) or 'nothing'}"


def _middle(trial: Found) -> str:
    return f"{trial['ratio']['median']:.3f}" if trial["ratio"] is not None else "-"


def row_of(name: str, parts: Sequence[Found]) -> Row:
    """Return a line of the table: a knob over all repeats."""
    trials = [part["trials"][name] for part in parts if name in part["trials"]]
    ratios = [trial["ratio"]["median"] for trial in trials if trial["ratio"] is not None]
    return {
        "knob": name,
        "repeats": str(len(parts)),
        "measured": str(len(ratios)),
        "median ratio": f"{median(ratios):.3f}" if ratios else "",
        "from": f"{min(ratios):.3f}" if ratios else "",
        "to": f"{max(ratios):.3f}" if ratios else "",
        "paid alone": str(sum(trial["status"] == "pays" for trial in trials)),
        "kept": str(sum(name in part["kept"] for part in parts)),
    }


def naive_row(parts: Sequence[Found]) -> Row:
    ratios = [part["ratio"] for part in parts]
    return {
        "knob": "nothing, timed one after the other",
        "repeats": str(len(parts)),
        "measured": str(len(ratios)),
        "median ratio": f"{median(ratios):.3f}",
        "from": f"{min(ratios):.3f}",
        "to": f"{max(ratios):.3f}",
        "paid alone": "",
        "kept": str(sum(ratio > WORTH for ratio in ratios)),
    }


def claims_of(tuned: Sequence[Found]) -> list[Claim]:
    """Return what is claimed. A knob that was not measured is not kept either: that would prove nothing."""
    trials = [trial for part in tuned for trial in part["trials"].values()]
    missing = sum(trial["ratio"] is None for trial in trials)
    kept = sum(bool(part["kept"]) for part in tuned)
    return [
        Claim(text=f"repeats that keep a knob that does not pay, of {len(tuned)}", found=kept, limit=0),
        Claim(text=f"knobs that were not measured, of {len(trials)}", found=missing, limit=0),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=20, help="with the three that must not be kept")
    parser.add_argument("--power", type=int, default=10, help="of these, so many with the one that is faster")
    parser.add_argument("--budget", type=float, default=120.0, help="seconds that tune may take")
    parser.add_argument("--quiet", action="store_true", help="without the neighbour, to compare")
    parser.add_argument("--keep", help="a JSON file of what is finished")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--neighbour", type=int, metavar="SEED", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.neighbour is not None:
        be_neighbour(options.neighbour)
        return 0
    kept = Kept(options.keep)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # whatever is started from here stays there
    with elsewhere():
        found = [repeat(number, kept, options=options) for number in range(options.repeats)]
    tuned = [part["planted"] for part in found]
    powered = [part["faster"] for part in found if "faster" in part]
    rows = [row_of(name, tuned) for name in planted()]
    rows += [row_of("faster", powered)] if powered else []
    rows.append(naive_row([part["naive"] for part in found]))
    title = "Planted knobs beside a noisy neighbour" if not options.quiet else "Planted knobs, no neighbour"
    return report(
        "tune_noise", sheets=[Sheet(title=title, rows=rows)], claims=claims_of(tuned), as_json=options.json
    )


if __name__ == "__main__":
    raise SystemExit(main())
