"""Claim: `truestep check` finds mistakes that are planted mechanically in other people's training scripts.

Every operator of `mutant_operators` is tried on every script of the wild corpus that it fits. A mutant counts
if it really changes training: run bare with the same seed it has other losses, weights, graphs or outputs
than the original, which repeats itself exactly (or as well as it can). One that does not is listed as
equivalent, one that crashes as such; neither counts. Found: `check` reports what it does not report of the
original, by a rule that is about the mistake (or that no step was made). A warning is new where
there was a remark. At its line: within 3 lines.
Results go to --results, one line a mutant, and what is in there is not run again. What a mutant changes does
not depend on truestep: with --measured, a file of earlier results, it is not measured again but checked.
Exit code: 0 all claims hold, 1 one fails, 2 one cannot be told.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

import wild_scripts
from measure import Claim, Row, Sheet, report
from mutant_operators import BLIND, OPERATORS
from mutant_source import Planted, Source, apply
from wild_scripts import MIRROR, CannotFetch, Script

TRACE = str(Path(__file__).with_name("mutant_trace.py"))
MIN_FOUND, MIN_AT_LINE = 0.90, 0.85
NEAR = 3
SAME_STEPS = 1.5
"""A factor on the loss counts only if steps become so much longer or shorter."""
LEAST = 1e-5
"""Relative difference of a loss or of the weights that is more than another order of sums."""


class Place:
    """A script set up in a folder, where its text is exchanged and it is run."""

    def __init__(self, script: Script, folder: Path, *, mirror: Path) -> None:
        self.script, self.folder = script, folder / "in"
        self.path = wild_scripts.set_up(script, self.folder, mirror=mirror)
        self.source = Source(self.path.read_text())

    def trace(self, *, seed: int = 0, lines: bool = False) -> dict[str, Any]:
        """Run the script bare; return what its training did and how it ended."""
        out = self.folder / "trace.json"
        out.unlink(missing_ok=True)
        words = [TRACE, str(out), str(seed), str(int(lines)), str(self.path), *self.script.arguments]
        code, printed, errors = wild_scripts.run([sys.executable, *words], self.script, self.folder)
        fields = json.loads(out.read_text()) if out.exists() else {}
        return {**fields, "code": code, "printed": printed, "why": errors[-200:]}

    def check(self) -> dict[str, Any] | None:
        """Run the script under check and return its answer."""
        command = wild_scripts.start_checked(self.script, self.path)
        _, answer, _ = wild_scripts.run(command, self.script, self.folder)
        try:
            return json.loads(answer)
        except ValueError:
            return None


def difference(first: dict[str, Any], second: dict[str, Any], *names: str) -> float:
    """Return how far two runs are apart: the largest relative difference of losses and weights, or others."""
    names = names or ("losses", "weights")
    if any(len(first[name]) != len(second[name]) for name in names):
        return float("inf")
    pairs = [pair for name in names for pair in zip(first[name], second[name], strict=True)]
    gaps = [
        abs(a - b) / max(abs(a), abs(b), 1e-12)
        for a, b in pairs
        if a != b and not (math.isnan(a) and math.isnan(b))
    ]
    return max((float("inf") if math.isnan(gap) else gap for gap in gaps), default=0.0)


def path_length(weights: Sequence[float]) -> float:
    """Return how far weights have gone, step by step."""
    return math.fsum(abs(one - other) for one, other in itertools.pairwise(weights))


class Bare:
    """What the unmutated script does without us: twice with one seed and once with another."""

    def __init__(self, place: Place) -> None:
        self.first = place.trace(lines=True)
        again = place.trace()
        other = place.trace(seed=1)
        if any(run["code"] != 0 or "losses" not in run for run in (self.first, again, other)):
            raise CannotFetch(f"{place.script.name} does not run bare: {self.first['why']}")
        if not self.first["losses"]:
            raise CannotFetch(f"{place.script.name} makes no backward pass, so that nothing can be planted")
        if len(self.first["weights"]) > 1 and not path_length(self.first["weights"]):
            raise CannotFetch(f"{place.script.name}: its weights do not move, so that nothing can be planted")
        self.noise = difference(self.first, again)
        self.output_noise = difference(self.first, again, "outputs")
        self.spread = difference(self.first, other)
        self.has_same_graphs = self.first["num_graphs"] == again["num_graphs"]
        self.is_output_stable = self.first["printed"] == again["printed"]
        self.lines = set(self.first["lines"])

    def effect(self, mutant: dict[str, Any], *, is_factor: bool = False) -> str:
        """Return what a mutant changes, or nothing."""
        if is_factor:  # what is passed to backward, and how often, differs as it was planted
            ratio = path_length(mutant["weights"]) / max(path_length(self.first["weights"]), 1e-12)
            return "" if 1 / SAME_STEPS < ratio < SAME_STEPS else "training"  # Adam forgets a factor
        gap = difference(self.first, mutant)
        if gap > max(LEAST, 3 * self.noise):
            return "training" if gap <= self.spread else "training, more than another seed"
        if self.has_same_graphs and mutant["num_graphs"] > self.first["num_graphs"]:  # fewer are no mistake
            return "graph"
        if difference(self.first, mutant, "outputs") > max(LEAST, 3 * self.output_noise):
            return "evaluation"
        if self.is_output_stable and mutant["printed"] != self.first["printed"]:
            return "output"
        return ""


class Original:
    """The unmutated script: what is found in it, and what it does bare, once somebody asks."""

    def __init__(self, place: Place) -> None:
        self._place = place
        answer = place.check()
        if answer is None:
            raise CannotFetch(f"{place.script.name} cannot be checked")
        self.keys = {_key(item) for item in _flat(answer)}
        self.has_steps = answer["steps"] > 0

    @cached_property
    def bare(self) -> Bare:
        """Its runs; the script in its place has to be the unmutated one."""
        return Bare(self._place)


def _flat(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for item in answer["findings"]:
        yield item
        yield from item["consequences"]


def _key(item: dict[str, Any]) -> tuple[str, int, bool]:
    return item["code"], item["line"], item["severity"] == "info"


def try_mutant(
    place: Place, original: Original, name: str, planted: Planted, known: dict[str, Any] | None
) -> dict[str, Any]:
    """Plant a mistake, see what it changes unless that is known, check, and return what was found."""
    if known is not None and known["state"] not in ("counted", "broken"):
        return known
    row: dict[str, Any] = {"script": place.script.name, "operator": name, "line": planted.line}
    try:
        text = apply(place.source, planted)
        compile(text, "mutant", "exec")
    except SyntaxError as error:
        return {**row, "state": "not planted", "why": str(error)}
    bare = None if known else original.bare  # before its text is exchanged
    place.path.write_text(text)
    try:
        row |= {"effect": known["effect"]} if known else measure(place, bare, name, planted)
        if "state" in row:
            return row
        answer = place.check()
    finally:
        place.path.write_text(place.source.text)
    if answer is None:
        return {**row, "state": "broken"}
    return {**row, "state": "counted", **judge(answer, original, OPERATORS[name].rules, planted)}


def measure(place: Place, bare: Bare, name: str, planted: Planted) -> dict[str, Any]:
    """Run what is planted bare; return what it changes, or why it does not count."""
    operator = OPERATORS[name]
    if planted.line not in bare.lines:
        return {"state": "not run"}
    run = place.trace()
    if run["code"] != 0 or "losses" not in run:
        return {"state": "crashes", "why": run["why"]}
    effect = bare.effect(run, is_factor=operator.is_factor)
    if operator.is_kept:
        effect = "graph" if planted.line in bare.first["kept_lines"] else ""
    if not effect or (operator.is_order and not effect.startswith("training")):
        return {"state": "equivalent"}
    return {"effect": effect}


def judge(
    answer: dict[str, Any], original: Original, rules: frozenset[str], planted: Planted
) -> dict[str, Any]:
    """Return whether the mistake was found, and where."""
    new = [item for item in _flat(answer) if _key(item) not in original.keys]
    lines = [(edit.node.lineno, edit.node.end_lineno) for edit in planted.edits]  # type: ignore[attr-defined]
    hits = [item for item in new if item["code"] in rules]
    near = [
        item for item in hits if any(first - NEAR <= item["line"] <= last + NEAR for first, last in lines)
    ]
    loud = [item for item in hits if item["severity"] != "info"]
    is_without_steps = original.has_steps and answer["steps"] == 0 and bool(answer["inconclusive"])
    return {
        "found": bool(loud) or is_without_steps,
        "at line": any(item["severity"] != "info" for item in near),
        "as info": bool(hits),
        "told": [f"{item['code']}:{item['line']}:{item['severity'][0]}" for item in new],
    }


def order_operators(script: str, names: Sequence[str]) -> list[str]:
    """Return the operators in an order of this script's own, so that a limit leaves none out everywhere."""
    return random.Random(script).sample(names, len(names))


def try_script(
    script: Script, names: Sequence[str], asked: argparse.Namespace, earlier: Sequence[dict[str, Any]]
) -> None:
    """Try operators on a script until enough mutants count, and write a line for each mutant."""
    own = [row for row in earlier if row["script"] == script.name]
    left = asked.per_script - sum(row["state"] == "counted" for row in own)
    tried = {row["operator"] for row in own}
    wanted = [name for name in order_operators(script.name, names) if name not in tried]
    if not wanted or left <= 0:
        return
    with tempfile.TemporaryDirectory() as folder:
        try:
            place = Place(script, Path(folder), mirror=Path(asked.mirror))
            plans = [(name, [*OPERATORS[name].plant(place.source)]) for name in wanted]
            original = Original(place)
            for name, found in plans:
                if perf_counter() > asked.end or left <= 0:
                    return
                rows = try_operator(place, original, name, found, asked)
                left -= sum(row["state"] == "counted" for row in rows)
                keep = rows or [{"script": script.name, "operator": name, "state": "does not fit"}]
                with asked.results.open("a") as file:
                    file.writelines(json.dumps(row) + "\n" for row in keep)
        except (CannotFetch, SyntaxError) as error:
            print(f"{script.name}: {error}", file=sys.stderr)


def try_operator(
    place: Place, original: Original, name: str, found: Sequence[Planted], asked: argparse.Namespace
) -> list[dict[str, Any]]:
    """Try one operator's mutants until enough of them count, and return what came out."""
    known = find_known(asked.known, place.script.name, name, found)
    rows: list[dict[str, Any]] = []
    for planted, row in zip(found, known or itertools.repeat(None), strict=False):
        if sum(row["state"] == "counted" for row in rows) >= asked.limit or len(rows) >= 3 * asked.limit:
            break
        rows.append(try_mutant(place, original, name, planted, row))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def find_known(
    rows: Sequence[dict[str, Any]], script: str, name: str, found: Sequence[Planted]
) -> list[dict[str, Any]]:
    """Return what was measured of an operator in a script, in order, if it is about the same lines."""
    own = [row for row in rows if (row["script"], row["operator"]) == (script, name) and "line" in row]
    is_same = all(row["line"] == planted.line for row, planted in zip(own, found, strict=False))
    return own if is_same and len(own) <= len(found) else []


def table(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> list[Row]:
    """Return a line for each operator."""
    lines = []
    for name in names:
        own = [row for row in rows if row["operator"] == name]
        counted = [row for row in own if row["state"] == "counted"]
        states = [row["state"] for row in own]
        lines.append(
            {
                "operator": f"{name} (blind)" if name in BLIND else name,
                "counted": float(len(counted)),
                "found": float(sum(row["found"] for row in counted)),
                "at line": float(sum(row["at line"] for row in counted)),
                "info only": float(sum(row["as info"] and not row["found"] for row in counted)),
                "equivalent": float(states.count("equivalent")),
                "crashes": float(states.count("crashes")),
                "not run": float(states.count("not run")),
                "broken": float(states.count("broken")),
            }
        )
    return lines


def halves(rows: Sequence[dict[str, Any]], blind_scripts: set[str]) -> list[Row]:
    """Return how much was found in what rules were tuned on, and in what was kept out of all tuning."""
    groups: dict[str, list[dict[str, Any]]] = {
        "tuned on": [],
        "blind operators": [],
        "blind scripts": [],
    }
    for row in rows:
        if row["state"] == "counted":
            is_blind = row["script"] in blind_scripts
            name = (
                "blind scripts" if is_blind else "blind operators" if row["operator"] in BLIND else "tuned on"
            )
            groups[name].append(row)
    return [
        {
            "mutants": name,
            "scripts": float(len({row["script"] for row in own})),
            "counted": float(len(own)),
            "found": float(sum(row["found"] for row in own)),
            "at line": float(sum(row["at line"] for row in own)),
        }
        for name, own in groups.items()
    ]


def claims_of(lines: Sequence[Row], wanted: int) -> list[Claim]:
    """Return what is claimed."""
    counted, found, at_line, broken = (
        sum(float(row[name]) for row in lines) for name in ("counted", "found", "at line", "broken")
    )
    return [
        Claim(text=f"mutants counted, less than wanted ({wanted})", found=max(wanted - counted, 0), limit=0),
        Claim(text="share not found", found=1 - found / counted if counted else None, limit=1 - MIN_FOUND),
        Claim(
            text="share not found at its line",
            found=1 - at_line / counted if counted else None,
            limit=1 - MIN_AT_LINE,
        ),
        Claim(text="mutants on which check itself failed", found=broken, limit=0),
    ]


def read_results(path: Path) -> list[dict[str, Any]]:
    """Return what earlier runs have written."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> int:
    """Plant and check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scripts", help="names of wild scripts, with commas between; all unless given")
    parser.add_argument("--operators", help="names, with commas between; all unless given")
    parser.add_argument("--blind", choices=("all", "without", "only"), default="all", help="blind operators")
    parser.add_argument("--limit", type=int, default=1, help="counted mutants of one operator in one script")
    parser.add_argument("--per-script", type=int, default=1000, help="counted mutants in one script")
    parser.add_argument("--wanted", type=int, default=1500, help="how many have to count")
    parser.add_argument("--seconds", type=float, default=36000.0, help="start no further mutant after this")
    parser.add_argument("--mirror", default=os.environ.get(MIRROR, str(Path.home() / ".cache/truestep-wild")))
    parser.add_argument("--results", type=Path, default=Path("mutants-results.jsonl"))
    parser.add_argument("--measured", type=Path, help="earlier results, whose effects are taken as they are")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    asked.known = read_results(asked.measured) if asked.measured else []
    asked.end = perf_counter() + asked.seconds
    names = asked.operators.split(",") if asked.operators else [*OPERATORS]
    if unknown := set(names) - set(OPERATORS):
        parser.error(f"unknown operators: {', '.join(sorted(unknown))}. There are {', '.join(OPERATORS)}")
    names = [name for name in names if asked.blind == "all" or (name in BLIND) == (asked.blind == "only")]
    scripts = wild_scripts.choose(asked.scripts)
    earlier = read_results(asked.results)
    with wild_scripts.quick_starts():
        for script in scripts:
            if perf_counter() < asked.end and script.processes == 1:
                try_script(script, names, asked, earlier)
    kept = {script.name for script in scripts}
    rows = [row for row in read_results(asked.results) if row["script"] in kept and row["operator"] in names]
    lines = table(rows, names)
    missed = [row for row in rows if row["state"] == "counted" and not row["found"]]
    listed = [
        {
            "script": r["script"],
            "operator": r["operator"],
            "line": float(r["line"]),
            "told": " ".join(r["told"]),
        }
        for r in missed
    ]
    blind = {script.name for script in scripts if script.blind}
    sheets = [
        Sheet(title="halves", rows=halves(rows, blind), num_digits=0),
        Sheet(title="operators", rows=lines, num_digits=0),
        Sheet(title="missed", rows=listed, num_digits=0),
    ]
    return report("mutants", sheets=sheets, claims=claims_of(lines, asked.wanted), as_json=asked.json)


if __name__ == "__main__":
    sys.exit(main())
