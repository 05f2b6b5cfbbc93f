"""Claims: the profile's shares are those of torch.profiler, and the advice on workers comes true.

Shares: scripts that profile themselves with torch.profiler, with ranges around the parts of a step, in
processes of their own, in turns with `truestep.tune.profile` on the same scripts without a profiler. Medians
of the rounds are compared, in points of a step. Advice: what a step takes with 1, 2, 4 workers and as many as
advised, against what was predicted from the run without any; for samples that wait, which is the claim, and
for samples that compute, which is stated: there workers and the model share the cores.
Exit code: 0 the claims hold, 1 one fails, 2 one cannot be told.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from measure import Claim, Row, Sheet, report

from truestep import watch
from truestep.tune.knob import PHASES
from truestep.tune.profile.profile import Profile, profile
from truestep.tune.search.loading import data_advice

SCRIPTS = Path(__file__).parents[1] / "tests" / "tune" / "scripts"
CASES = {
    "cnn": ("profile_cnn.py",),
    "transformer": ("profile_transformer.py",),
    "data-bound": ("profile_loading.py", "--sleep", "0.001", "--width", "512"),
}
WAITING = ("profile_loading.py", "--sleep", "0.005", "--width", "512")
COMPUTING = ("profile_loading.py", "--work", "60", "--width", "512")
MAX_POINTS, MAX_ERROR = 5.0, 0.10


def profiled(words: tuple[str, ...]) -> Profile:
    """Profile a script as `truestep tune --profile-only` does."""
    with contextlib.chdir(SCRIPTS):
        return profile(watch.Script(path=words[0], arguments=words[1:]))


def own_shares(words: tuple[str, ...]) -> dict[str, float]:
    """Run a script under its own torch.profiler alone; return the shares of its ranges."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "totals.json"
        command = [sys.executable, *words, "--profiler", str(path)]
        subprocess.run(command, cwd=SCRIPTS, check=True, capture_output=True)
        totals: dict[str, float] = json.loads(path.read_text())
    whole = totals.pop("step")
    shares = {phase: totals.get(phase, 0.0) / whole for phase in PHASES}
    shares["other"] = 1.0 - sum(share for phase, share in shares.items() if phase != "other")
    return shares


def compare_shares(num_rounds: int) -> tuple[list[Row], float]:
    """Return a row for each script and phase, and the largest difference in points."""
    rows: list[Row] = []
    worst = 0.0
    for name, words in CASES.items():
        ours: list[Profile] = []
        theirs: list[dict[str, float]] = []
        for _ in range(num_rounds):
            ours.append(profiled(words))
            theirs.append(own_shares(words))
        for phase in PHASES:
            mine = 100 * median(found.share_of(phase) for found in ours)
            its = 100 * median(found[phase] for found in theirs)
            worst = max(worst, abs(mine - its))
            shares: Row = {"profile %": mine, "torch.profiler %": its, "points apart": abs(mine - its)}
            rows.append({"script": name, "phase": phase, **shares})
    return rows, worst


def compare_advice(words: tuple[str, ...], num_rounds: int) -> tuple[list[Row], float | None]:
    """Return a row for each number of workers, and how far the advised one is from its prediction."""
    cores = len(os.sched_getaffinity(0))
    advice = data_advice(profiled(words), cores)
    if advice is None:
        return [], None
    rows: list[Row] = []
    error = None
    predicted = {row.workers: row for row in advice.table}
    for workers in sorted({1, 2, 4, advice.workers} & set(predicted)):
        runs = [profiled((*words, "--workers", str(workers))) for _ in range(num_rounds)]
        measured = median(found.mean_s for found in runs)
        ratio = measured / predicted[workers].step_s
        row = {"workers": f"{workers}{' (advised)' if workers == advice.workers else ''}"}
        times = {"predicted ms": 1e3 * predicted[workers].step_s, "measured ms": 1e3 * measured}
        rows.append({**row, **times, "ratio": ratio, "limit": predicted[workers].limit})
        error = abs(ratio - 1) if workers == advice.workers else error
    first: Row = {"workers": "0", "measured ms": 1e3 * advice.step_s}
    return [first, *rows], error


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    shares, worst = compare_shares(options.rounds)
    waiting, waiting_error = compare_advice(WAITING, options.rounds)
    computing, _ = compare_advice(COMPUTING, options.rounds)
    sheets = [
        Sheet(title="shares of a step", rows=shares),
        Sheet(title="workers for samples that wait", rows=waiting, num_digits=2),
        Sheet(title="workers for samples that compute (no claim)", rows=computing, num_digits=2),
    ]
    claims = [
        Claim(
            text="shares differ from torch.profiler's by at most",
            found=worst,
            limit=MAX_POINTS,
            unit="points",
        ),
        Claim(text="the advised step differs from its prediction by", found=waiting_error, limit=MAX_ERROR),
    ]
    return report("tune_profile", sheets=sheets, claims=claims, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
