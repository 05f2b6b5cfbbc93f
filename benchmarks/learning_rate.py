"""Whether the learning rate that a range test suggests trains well, on the scripts in rates/.

Usage: python benchmarks/learning_rate.py [--json] [--only NAME,NAME] [--pictures FOLDER]

Each script is trained for 150 steps with seven rates, a decade apart, and its loss on data that it has not
seen is taken. Then a rate is suggested from one sweep of 100 steps, and the script is trained with that.
Claims, on each script: of what the best of the seven gains over the loss at the start, the suggestion gains
at least four fifths; at most two of the seven are better. The other readings of the same curve are trained
too. Which reading is the suggestion was chosen on all scripts but those of HELD_OUT.
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

from measure import Claim, Row, Sheet, report

from truestep import watch
from truestep.tune.search.learning_rate import RangeTest, draw, range_test

FOLDER = Path(__file__).parent / "rates"
GRID = [10.0**power for power in range(-5, 2)]
MIN_GAIN, MAX_BETTER = 0.8, 2
NOTHING = 1e-12
"""A rate at which nothing is learned: the loss that the script starts with."""
HELD_OUT = ("convnet_onecycle", "letters_adamw")
READINGS = ("valley", "steepest", "tenth")


def train(script: Path, rate: float) -> float:
    """Return the loss on unseen data after 150 steps."""
    words = [sys.executable, str(script), "--lr", repr(rate)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=600)
    loss = float(done.stdout)
    return loss if math.isfinite(loss) else math.inf


def suggest(script: Path) -> RangeTest:
    with tempfile.TemporaryDirectory() as folder:
        before = Path.cwd()
        os.chdir(folder)
        try:
            return range_test(watch.Script(path=str(script)))
        finally:
            os.chdir(before)


def measure(script: Path, pictures: Path | None) -> tuple[Row, dict[str, float], int]:
    """Return the row of the table, each reading's gain, and how many rates of the grid are better."""
    print(f"{script.stem} ...", file=sys.stderr)
    start = train(script, NOTHING)
    losses = [train(script, rate) for rate in GRID]
    test = suggest(script)
    if test.readings is None:
        raise SystemExit(f"{script.stem}: no rate is suggested")
    if pictures is not None:
        draw(test).save(pictures / f"{script.stem}.png")
    best = min(losses)
    found = {name: train(script, getattr(test.readings, name)) for name in READINGS}
    gains = {name: (start - loss) / (start - best) for name, loss in found.items()}
    suggested = next(name for name in READINGS if getattr(test.readings, name) == test.suggestion)
    num_better = sum(loss < found[suggested] for loss in losses)
    row: dict[str, float | str | None] = {
        "script": script.stem + (" (held)" if script.stem in HELD_OUT else ""),
        "start": start,
    }
    row.update({f"{rate:g}": loss for rate, loss in zip(GRID, losses, strict=True)})
    row |= {"rate": f"{test.suggestion:.2g}", "suggestion": found[suggested], "better": num_better}
    row |= {f"gain, {name}": gain for name, gain in gains.items()}
    return row, {"suggestion": gains[suggested], **gains}, num_better


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--only", help="names of scripts, with commas between them")
    parser.add_argument("--pictures", type=Path, help="a folder for the curves")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else sorted(path.stem for path in FOLDER.glob("*.py"))
    measured = [measure(FOLDER / f"{name}.py", options.pictures) for name in names]
    sheet = Sheet(
        title="Loss on unseen data after 150 steps, by learning rate",
        rows=[{name: row[name] for name in row if not name.startswith("gain")} for row, _, _ in measured],
        note="gain: part of the best grid rate's way down from the start",
        num_digits=3,
    )
    readings = Sheet(
        title="Readings of the same curve",
        rows=[
            {name: row[name] for name in row if name.startswith(("script", "gain"))} for row, _, _ in measured
        ],
        num_digits=3,
    )
    worst = min(gains["suggestion"] for _, gains, _ in measured)
    claims = [
        Claim(
            text="part of the best rate's gain that the suggestion misses",
            found=1 - worst,
            limit=1 - MIN_GAIN,
        ),
        Claim(
            text="of seven rates, how many are better than the suggestion",
            found=max(num for _, _, num in measured),
            limit=MAX_BETTER,
        ),
    ]
    return report("learning_rate", sheets=[sheet, readings], claims=claims, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
