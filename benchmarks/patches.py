"""Tries the edits that `truestep check` shows for a script, and those that `--fix` keeps.

A patch is right if the script runs to its end with as many steps as before, no finding that it is for is
left, no finding is new, and it still trains: its last loss is at most 1.2 times the larger one of the
script's as it was and of the one that was repaired by hand. The last loss is the median of the last third of
those that were read. A repair may change what a loss measures: so neither of the two alone is the measure.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from measure import Claim, Row

from tests.gathering import judged
from tests.patches import repaired
from truestep.check import Result, RuleFinding, apply_fixes, proposed
from truestep.check.evaluate import flatten
from truestep.check.fixing import fixable
from truestep.rules import find_rules
from truestep.watch import Script
from truestep.watch.evidence.facts.optimizing import LossLevel

MAX_LOSS = 1.2


class Bench:
    """A script in a folder of its own, that is run with one text after the other: once with each."""

    def __init__(self, script: Path, folder: Path) -> None:
        self.script = script
        self._path = folder / script.name
        self._path.write_text(script.read_text())
        self._results: dict[str, Result] = {}

    def examine(self) -> Result:
        """Run the script as its file is now, and judge it."""
        text = self._path.read_text()
        if text not in self._results:
            found, told = judged(self._path)
            self._results[text] = Result(
                code=found.code,
                evidence=found.evidence,
                rules=find_rules(),
                evaluation=told,
                script=Script(path=str(self._path)),
            )
        return self._results[text]

    def with_text(self, text: str) -> Result:
        """Run it with another text, and put its own back."""
        before = self._path.read_text()
        self._path.write_text(text)
        try:
            return self.examine()
        finally:
            self._path.write_text(before)

    def rows(self) -> Iterator[Row]:
        """Try what is shown and what `--fix` keeps."""
        before = self.examine()
        found = fixable(before)
        if not found:
            return
        shown = proposed(before)
        local = [item for item in found if item not in shown.untested]
        if local:
            yield self._row("shown", local, self._faults(local, shown.changed))
        fixed = apply_fixes(before, self.examine)
        if fixed.kept:
            yield self._row("kept by --fix", fixed.kept, self._faults(fixed.kept, fixed.changed))
        for reported, reason in fixed.withdrawn:
            yield self._row("withdrawn by --fix", [reported], [reason])

    def _row(self, edits: str, findings: Sequence[RuleFinding], faults: Sequence[str]) -> Row:
        codes = sorted({item.rule.meta.code for item in findings})
        return {
            "script": self.script.stem,
            "edits": edits,
            "for": " ".join(codes),
            "right": None if edits.startswith("withdrawn") else float(not faults),
            "why not": "; ".join(faults),
        }

    def _faults(self, tried: Sequence[RuleFinding], changed: Mapping[str, str]) -> list[str]:
        before, after = self.examine(), self.with_text(changed[str(self._path)])
        by_hand = self.with_text(repaired(self.script))
        faults = [] if after.inconclusive is None else [after.inconclusive]
        if after.num_steps < before.num_steps:
            faults.append(f"{after.num_steps} steps instead of {before.num_steps}")
        left = codes_of(before) - Counter(item.rule.meta.code for item in tried)
        faults += [f"{code} is reported" for code in sorted((codes_of(after) - left).keys())]
        limit = MAX_LOSS * max(last_loss(before), last_loss(by_hand))
        if not last_loss(after) <= limit:
            faults.append(f"the last loss is {last_loss(after):.4g}, above {limit:.4g}")
        return faults


def codes_of(result: Result) -> Counter[str]:
    """Return how often each rule reports more than a remark."""
    worse = (item for item in flatten(result.findings) if item.severity != "info")
    return Counter(item.rule.meta.code for item in worse)


def last_loss(result: Result) -> float:
    """Return where the loss is in the end; 0 if it was not read."""
    losses = [moment.facts.loss for moment in result.evidence.of(LossLevel)]
    last = losses[-(len(losses) // 3 or 1) :]
    return statistics.median(item if isinstance(item, float) else math.inf for item in last) if last else 0.0


def try_patches(script: Path) -> list[Row]:
    """Return a line for each set of edits for a script of the corpus that has a repair by hand."""
    with tempfile.TemporaryDirectory() as folder:
        return [*Bench(script, Path(folder)).rows()]


def claims_of(rows: Sequence[Row]) -> list[Claim]:
    """Return what is claimed of the edits."""
    claims = []
    for edits in ("shown", "kept by --fix"):
        tried = [row["right"] for row in rows if row["edits"] == edits]
        found = tried.count(0.0) if tried else None
        claims.append(Claim(text=f"wrong patches {edits}, of {len(tried)}", found=found, limit=0))
    return claims
