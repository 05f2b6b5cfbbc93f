"""Claim: `tune` finds settings as good as the best of all, in a tenth of the time that trying all takes.

For each script of benchmarks/tune: tune with some knobs; then every setting of the same knobs, each compared
with the script as it stands, with the same care; then the three best of these against tune's choice, head to
head, of which the one that is hardest for tune counts. Values that tune refuses since learning suffers are
out of the sweep's choice too. Judged: the tuned script is not slower than the start, its speed is at least
0.95 of the best, and tune takes at most a tenth of the sweep's time. Ten to twenty minutes a script; with
--keep FILE it goes on where it was stopped.
Exit code: 0 all claims hold, 1 one fails, 2 one cannot be told.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

from measure import Claim, Row, Sheet, report
from tune_scripts import (
    MIN_PAIRS,
    SCRIPTS,
    Kept,
    as_interval,
    compared,
    elsewhere,
    look_at,
    pick_names,
    say,
    script_of,
)

from truestep.tune.knob import Knob, ScriptFacts
from truestep.tune.knobs import KNOBS as ALL_KNOBS
from truestep.tune.knobs import pick
from truestep.tune.search.search import TuneOptions, tune

MIN_OF_BEST, MAX_TIME = 0.95, 0.1
NUM_FINALISTS, NUM_DUELS = 3, 24
KNOBS = {
    "mlp": ("workers", "threads", "fused", "autocast"),
    "cnn": ("threads", "fused", "allocator", "autocast", "channels_last"),
    "transformer": ("workers", "threads", "fused", "autocast"),
    "lstm": ("workers", "threads", "fused", "autocast"),
    "slow_data": ("workers", "prefetch", "threads", "autocast"),
    "lightning_fit": ("workers", "threads", "autocast", "channels_last"),
    "accelerate_loop": ("workers", "threads", "fused", "autocast"),
}
"""Some of them: all settings of all knobs take hours a script; how many is computed and stated beside."""
Setting = dict[str, Any]
Found = dict[str, Any]


def positions(knob: Knob, facts: ScriptFacts, others: Mapping[str, Any]) -> list[Any]:
    """Return the values of a knob beside the script's own."""
    offer = knob.offer(facts, others)
    return [] if isinstance(offer, str) else offer


def all_settings(knobs: Mapping[str, Knob], facts: ScriptFacts) -> list[Setting]:
    """Return every setting that is not the start, without those in which a knob does nothing.

    What a knob proposes depends on the others: only workers can be kept, a fused optimizer has no foreach.
    """
    hints: tuple[Setting, ...] = ({}, {"workers": facts.cores})
    values = {
        name: [None, *_distinct(value for hint in hints for value in positions(knob, facts, hint))]
        for name, knob in knobs.items()
    }
    found = []
    for combination in product(*values.values()):
        setting = {name: value for name, value in zip(values, combination, strict=True) if value is not None}
        if setting and all(_is_possible(knobs[name], facts, setting) for name in setting):
            found.append(setting)
    return found


def _distinct(values: Any) -> list[Any]:
    return [json.loads(text) for text in dict.fromkeys(map(json.dumps, values))]


def _is_possible(knob: Knob, facts: ScriptFacts, setting: Setting) -> bool:
    others = {name: value for name, value in setting.items() if name != knob.name}
    return setting[knob.name] in positions(knob, facts, others)


def run_tune(name: str, budget_s: float) -> Found:
    """Tune a script with its knobs."""
    say(f"{name}: tune")
    result = tune(script_of(name), TuneOptions(budget_s=budget_s, knobs=pick(KNOBS[name])))
    refused = [(trial.knob, trial.value) for trial in result.trials if trial.status == "refused"]
    found: Found = {
        "settings": dict(result.settings),
        "seconds": result.seconds,
        "ratio": as_interval(result.final) if result.final is not None else None,
        "refused": refused,
        "trials": [{**trial.as_fields(), "learning": None} for trial in result.trials],
    }
    say(f"{name}: tune took {result.seconds:.0f} s and keeps {found['settings']}, {in_words(found['ratio'])}")
    return found


def run_comparison(
    name: str, base: Setting, other: Setting, *, seconds: float, min_pairs: int = MIN_PAIRS
) -> Found:
    """Compare two settings of a script; without a ratio if the other one fails."""
    found = compared(name, base, other, seconds=seconds, knobs=pick(KNOBS[name]), min_pairs=min_pairs)
    return {"base": base, "settings": other, "ratio": None, **found}


def in_words(ratio: Mapping[str, float] | None) -> str:
    if ratio is None:
        return "not measured"
    return f"{ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"


def space_of(name: str, kept: Kept) -> tuple[list[Setting], int]:
    """Return every setting of a script's knobs, and how many there are with all knobs of tune."""

    def make() -> Found:
        facts = look_at(script_of(name))[0]
        return {
            "settings": all_settings(pick(KNOBS[name]), facts),
            "num_all": len(all_settings(ALL_KNOBS, facts)),
        }

    found = kept.part(f"{name}/all", make)
    return found["settings"], found["num_all"]


def sweep(name: str, kept: Kept, seconds: float) -> list[Found]:
    """Compare every setting with the start."""
    settings, _ = space_of(name, kept)
    found = []
    for number, setting in enumerate(settings):

        def make(number: int = number, setting: Setting = setting) -> Found:
            made = run_comparison(name, {}, setting, seconds=seconds)
            told = made.get("failed") or in_words(made["ratio"])
            say(f"{name}: {number + 1} of {len(settings)}, {setting}: {told}")
            return made

        found.append(kept.part(f"{name}/sweep/{json.dumps(setting)}", make))
    return found


def finalists(swept: Sequence[Found], refused: Sequence[Sequence[Any]]) -> list[Setting]:
    """Return the best settings of the sweep, of those that tune may choose; the start is one of them."""
    may = [
        item
        for item in swept
        if item["ratio"] is not None
        and not any(item["settings"].get(knob) == value for knob, value in refused)
    ]
    may.append({"settings": {}, "ratio": {"median": 1.0}})
    may.sort(key=lambda item: -item["ratio"]["median"])
    return [item["settings"] for item in may[:NUM_FINALISTS]]


def judge(name: str, kept: Kept, *, budget_s: float, seconds: float) -> tuple[Row, list[Claim]]:
    """Tune, sweep and compare the two; return a line of the table and what is claimed of it."""
    tuned = kept.part(f"{name}/tune", lambda: run_tune(name, budget_s))
    swept = sweep(name, kept, seconds)
    duels = [
        kept.part(f"{name}/duel/{json.dumps(best)}", partial(_duel, name, best, tuned["settings"]))
        for best in finalists(swept, tuned["refused"])
    ]
    measured = [duel for duel in duels if duel["ratio"] is not None]
    hardest = min(measured, key=lambda duel: duel["ratio"]["median"], default=None)
    sweep_s = sum(item["seconds"] for item in swept)
    best = max((item["ratio"]["median"] for item in swept if item["ratio"]), default=1.0)
    row = {
        "script": name,
        "tune, s": tuned["seconds"],
        "sweep, s": sweep_s,
        "settings": str(len(swept)),
        "of all knobs, h": f"{sweep_s / max(1, len(swept)) * space_of(name, kept)[1] / 3600:.1f} computed",
        "tuned": in_words(tuned["ratio"]) if tuned["settings"] else "as it is",
        "best": f"{best:.3f}",
        "tuned over best": in_words(hardest["ratio"]) if hardest else "not measured",
        "kept": _words_of(tuned["settings"]),
        "best is": _words_of(hardest["base"]) if hardest else "",
    }
    return row, claims_of(name, tuned, hardest, sweep_s)


def _duel(name: str, best: Setting, chosen: Setting) -> Found:
    if best == chosen:
        one = {"median": 1.0, "low": 1.0, "high": 1.0, "num": 0}
        return {"base": best, "settings": chosen, "ratio": one, "seconds": 0.0}
    made = run_comparison(name, best, chosen, seconds=60.0, min_pairs=NUM_DUELS)
    say(f"{name}: tune's choice over {best}: {in_words(made['ratio'])}")
    return made


def _words_of(setting: Setting) -> str:
    return ", ".join(f"{name} {value}" for name, value in setting.items()) or "the start"


def claims_of(name: str, tuned: Found, hardest: Found | None, sweep_s: float) -> list[Claim]:
    """Return the claims for a script. Ratios are turned over: what is claimed is that they are small."""
    start = _turned_over(tuned["ratio"]) if tuned["settings"] else (1.0, 0.0)
    behind = _turned_over(hardest["ratio"] if hardest else None)
    share = tuned["seconds"] / sweep_s if sweep_s else None
    return [
        Claim(text=f"{name}: start over tuned", found=start[0], error=start[1], limit=1.0),
        Claim(text=f"{name}: best over tuned", found=behind[0], error=behind[1], limit=1 / MIN_OF_BEST),
        Claim(text=f"{name}: tune's time over the sweep's", found=share, limit=MAX_TIME),
    ]


def _turned_over(ratio: Mapping[str, float] | None) -> tuple[float | None, float]:
    """Return the inverse of a ratio with its standard error: 98 % are 2.33 of them to each side."""
    if ratio is None:
        return None, math.inf
    return 1 / ratio["median"], (1 / ratio["low"] - 1 / ratio["high"]) / 2 / 2.33


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scripts", default="", help=f"some of {', '.join(SCRIPTS)}; all if not given")
    parser.add_argument("--seconds", type=float, default=25.0, help="at most, for each setting of the sweep")
    parser.add_argument("--budget", type=float, default=120.0, help="seconds that tune may take")
    parser.add_argument("--keep", help="a JSON file of what is finished")
    parser.add_argument("--list", action="store_true", help="only tell how many settings there are")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args()
    kept = Kept(options.keep)
    rows: list[Row] = []
    claims: list[Claim] = []
    with elsewhere():
        for name in pick_names(options.scripts, list(SCRIPTS)):
            if options.list:
                settings, num_all = space_of(name, kept)
                print(f"{name}: {len(settings)} settings beside the start; {num_all} with all knobs")
                continue
            row, claimed = judge(name, kept, budget_s=options.budget, seconds=options.seconds)
            rows.append(row)
            claims += claimed
    if options.list:
        return 0
    sheet = Sheet(title="Tuned, and the best of all settings: speed over the start's", rows=rows)
    return report("tune_sweep", sheets=[sheet], claims=claims, as_json=options.json)


if __name__ == "__main__":
    raise SystemExit(main())
