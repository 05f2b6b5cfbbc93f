"""Claim: no edit that `truestep check` shows is wrong, and none that `--fix` keeps.

Tries them on the scripts of our corpus with one mistake, on public scripts, and on public scripts in which
mistakes are planted that a rule with edits is about. A patch is right if the script runs to its end with as
many steps as before, or as after a repair by hand, no finding that it is for is left, none is new, and it
still trains: its last loss exceeds the larger one of the script's as it was and of the one that was repaired
by hand by at most a fifth, in one of three runs of each. The last loss is the median of the last third of
those that were read. A repair may change what a loss measures: so neither of the two alone is the measure.
Results go to --results, one line a script, and what is in there is not tried again.
Exit code: 0 all claims hold, 1 one fails, 2 one cannot be told.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import wild_scripts
from gate import WILD
from measure import Claim, Row, Sheet, report
from mutant_operators import OPERATORS
from mutant_source import apply
from mutants import Place
from wild_scripts import MIRROR, CannotFetch

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.gathering import server_of
from tests.patches import repaired
from truestep.check import CheckOptions, Result, RuleFinding, Settings, apply_fixes, examine, proposed
from truestep.check.evaluate import flatten
from truestep.check.fixing import fixable
from truestep.cli._answer import make_patch
from truestep.rules import find_rules
from truestep.watch import Script
from truestep.watch.evidence.facts.optimizing import LossLevel

CORPUS = Path(__file__).parents[1] / "tests" / "corpus" / "buggy"
PARTS = ("corpus", "wild", "mutants")
MAX_WORSE, NUM_TIMES = 0.2, 3
OPTIONS = CheckOptions(timeout_s=wild_scripts.MAX_S, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A text for a script, and what it is after a repair by hand."""

    part: str
    name: str
    text: str
    by_hand: str


class Bench:
    """A script in a folder of its own, that is run with one text after the other: once with each."""

    def __init__(self, case: Case, script: Script) -> None:
        self._case, self._script = case, script
        self._path = Path(script.path)
        self._path.write_text(case.text)
        self._results: dict[tuple[bytes, ...], Result] = {}

    def examine(self, *, is_anew: bool = False) -> Result:
        """Run the script as its files are now, and judge it."""
        texts = tuple(path.read_bytes() for path in sorted(self._path.parent.rglob("*.py")))
        if is_anew or texts not in self._results:
            self._results[texts] = examine(self._script, Settings(), options=OPTIONS)
            assert self._results[texts].evidence.sources is not None  # read now, as they are
        return self._results[texts]

    def with_texts(self, texts: Mapping[str, str], *, is_anew: bool = False) -> Result:
        """Run it with other texts of files, and put their own back."""
        before = {file: Path(file).read_bytes() for file in texts}
        for file, text in texts.items():
            Path(file).write_bytes(text.encode())
        try:
            return self.examine(is_anew=is_anew)
        finally:
            for file, content in before.items():
                Path(file).write_bytes(content)

    def rows(self) -> Iterator[Row]:
        """Try what is shown and what `--fix` keeps."""
        before = self.examine()
        found = fixable(before)
        if not found:
            return
        shown = proposed(before)
        local = [item for item in found if item not in shown.untested]
        if local:
            yield self._row("shown", local, shown.changed)
        fixed = apply_fixes(before, self.examine)
        for file in fixed.changed:
            Path(file).write_bytes(raw_of(before, file))
        if fixed.kept:
            yield self._row("kept by --fix", fixed.kept, fixed.changed)
        for reported, reason in fixed.withdrawn:
            yield self._row("withdrawn by --fix", [reported], {}, reason)

    def _row(
        self, edits: str, findings: Sequence[RuleFinding], changed: Mapping[str, str], *reasons: str
    ) -> Row:
        faults = reasons or self._faults(findings, changed)
        return {
            "part": self._case.part,
            "script": self._case.name,
            "edits": edits,
            "for": " ".join(sorted({item.rule.meta.code for item in findings})),
            "right": None if reasons else float(not faults),
            "why not": "; ".join(faults),
            "patch": make_patch(dict(changed), self.examine()),
        }

    def _faults(self, tried: Sequence[RuleFinding], changed: Mapping[str, str]) -> list[str]:
        before, after = self.examine(), self.with_texts(changed)
        by_hand = self.with_texts({str(self._path): self._case.by_hand})
        faults = [] if after.inconclusive is None else [after.inconclusive]
        if after.num_steps < min(before.num_steps, by_hand.num_steps):
            faults.append(f"{after.num_steps} steps instead of {before.num_steps}")
        left = codes_of(before) - Counter(item.rule.meta.code for item in tried)
        faults += [f"{code} is reported" for code in sorted((codes_of(after) - left).keys())]
        return [*faults, *self._losses(changed)]

    def _losses(self, changed: Mapping[str, str]) -> list[str]:
        """Return what is wrong with the last loss, if it is in each of some runs."""
        others, own = [], []
        for number in range(NUM_TIMES):
            run = partial(self.with_texts, is_anew=number > 0)
            others += [last_loss(run(texts)) for texts in ({}, {str(self._path): self._case.by_hand})]
            own.append(last_loss(run(changed)))
            limit = max(others) + MAX_WORSE * abs(max(others))
            if min(own) <= limit:
                return []
        return [f"the last loss is {min(own):.4g}, above {limit:.4g}"]


def raw_of(result: Result, file: str) -> bytes:
    """Return a file as it was when it was run."""
    source = result.evidence.source(file)
    assert source is not None
    return source.raw.encode()


def codes_of(result: Result) -> Counter[str]:
    """Return how often each rule reports more than a remark."""
    worse = (item for item in flatten(result.findings) if item.severity != "info")
    return Counter(item.rule.meta.code for item in worse)


def last_loss(result: Result) -> float:
    """Return where the loss is in the end; 0 if it was not read."""
    losses = [moment.facts.loss for moment in result.evidence.of(LossLevel)]
    last = losses[-(len(losses) // 3 or 1) :]
    return statistics.median(item if isinstance(item, float) else math.inf for item in last) if last else 0.0


@contextmanager
def in_place(folder: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """Stand in a folder, with other variables."""
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        with chdir(folder):
            yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def of_corpus(asked: argparse.Namespace, done: set[str]) -> None:
    """Try the edits for the scripts with one mistake, as if each were the user's."""
    for path in sorted(CORPUS.glob("*.py")):
        case = Case(part="corpus", name=path.stem, text=path.read_text(), by_hand=repaired(path))
        with tempfile.TemporaryDirectory() as folder:
            script = Script(path=str(Path(folder, path.name)))
            with in_place(Path(folder), {"TRUESTEP_TESTS_SERVER": server_of(path)}):
                try_case(case, script, asked, done)


def of_wild(asked: argparse.Namespace, done: set[str]) -> None:
    """Try the edits for public scripts, unmodified and with planted mistakes."""
    for own in wild_scripts.choose(asked.scripts):
        with tempfile.TemporaryDirectory() as folder:
            try:
                place = Place(own, Path(folder), mirror=asked.mirror)
            except (CannotFetch, SyntaxError) as error:
                print(f"{own.name}: {error}", file=sys.stderr)
                continue
            script = Script(path=str(place.path), arguments=own.arguments)
            standing = wild_scripts.working_folder(own, place.folder)
            with in_place(standing, wild_scripts.environment_of(own, place.folder)):
                for case in cases_of(place, asked.kinds.split(",")):
                    try_case(case, script, asked, done)


def kinds_with_edits() -> list[str]:
    """Return the kinds of mistakes for which there may be edits."""
    codes = {rule.meta.code for rule in find_rules() if rule.make_edits is not None}
    return [kind for kind, operator in OPERATORS.items() if operator.rules & codes]


def cases_of(place: Place, kinds: Sequence[str]) -> Iterator[Case]:
    """Yield a script as it is, and with the first mistake of each kind."""
    name, text = place.script.name, place.source.text
    yield Case(part="wild", name=name, text=text, by_hand=text)
    for kind in kinds:
        for planted in [*OPERATORS[kind].plant(place.source)][:1]:
            buggy = apply(place.source, planted)
            yield Case(part="mutants", name=f"{name} {kind}:{planted.line}", text=buggy, by_hand=text)


def try_case(case: Case, script: Script, asked: argparse.Namespace, done: set[str]) -> None:
    """Write a line with what came of a case, unless it was tried."""
    if case.part not in asked.parts or f"{case.part} {case.name}" in done or perf_counter() > asked.end:
        return
    try:
        compile(case.text, case.name, "exec")
        rows = [*Bench(case, script).rows()]
    except SyntaxError:  # what was planted is no Python
        return
    with asked.results.open("a") as file:
        file.write(json.dumps({"case": f"{case.part} {case.name}", "rows": rows}) + "\n")
    print(case.part, case.name, [(row["edits"], row["right"]) for row in rows], file=sys.stderr, flush=True)


def sums(rows: Sequence[Row], num_cases: Mapping[str, int]) -> list[Row]:
    """Return a line for each part."""
    lines: list[Row] = []
    for part, number in num_cases.items():
        line: dict[str, Any] = {"part": part, "scripts": float(number)}
        for edits in ("shown", "kept by --fix", "withdrawn by --fix"):
            own = [row["right"] for row in rows if (row["part"], row["edits"]) == (part, edits)]
            line[edits] = float(len(own))
            if not edits.startswith("withdrawn"):
                line[f"{edits}, right"] = float(own.count(1.0))
        lines.append(line)
    return lines


def claims_of(rows: Sequence[Row]) -> list[Claim]:
    """Return what is claimed of the edits."""
    claims = []
    for edits in ("shown", "kept by --fix"):
        tried = [row["right"] for row in rows if row["edits"] == edits]
        found = tried.count(0.0) if tried else None
        claims.append(Claim(text=f"wrong patches {edits}, of {len(tried)}", found=found, limit=0))
    return claims


def main() -> int:
    """Try the edits."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS), help="with commas between")
    parser.add_argument("--scripts", default=",".join(WILD), help="public scripts, with commas between")
    parser.add_argument("--kinds", default=",".join(kinds_with_edits()), help="of mistakes to plant")
    default = os.environ.get(MIRROR, str(Path.home() / ".cache/truestep-wild"))
    parser.add_argument("--mirror", type=Path, default=default)
    parser.add_argument("--results", type=Path, default=Path("patches-results.jsonl"))
    parser.add_argument("--seconds", type=float, default=36000.0, help="start no further script after this")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    asked.results, asked.end = asked.results.resolve(), perf_counter() + asked.seconds
    lines = asked.results.read_text().splitlines() if asked.results.exists() else []
    done = {json.loads(line)["case"] for line in lines}
    with wild_scripts.quick_starts():
        if "corpus" in asked.parts:
            of_corpus(asked, done)
        if {"wild", "mutants"} & set(asked.parts.split(",")):
            of_wild(asked, done)
    cases = [json.loads(line) for line in asked.results.read_text().splitlines()]
    rows = [row for case in cases for row in case["rows"]]
    numbers = Counter(case["case"].split()[0] for case in cases)
    table = [{key: value for key, value in row.items() if key != "patch"} for row in rows]
    sheets = [Sheet(title="in sum", rows=sums(rows, numbers), num_digits=0), Sheet(title="edits", rows=table)]
    return report("patches", sheets=sheets, claims=claims_of(rows), as_json=asked.json)


if __name__ == "__main__":
    sys.exit(main())
