"""Claim: `truestep verify` calls no script the same in which a tensor or a saved file differs.

In the scripts of benchmarks/oracle every tensor that is alive is made to differ from run to run, one at a
time, by a number from the system's entropy or another source, at a known line. What each run has changed is
written down and is the truth. `compared`: two runs by the library, compared as the command does, without
asking for the cause. `command`: the whole command, with the cause. `clean`: the whole command on each script
as it is, which must be called the same.
Exit code: 0 the claim holds for enough targets, no wrong cause is called proved, and no clean script is
called different; 1 not so; 2 bad usage.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent / "oracle"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import planting
from planting import SOURCES, Target

from tests import preloaded
from truestep.verify import Script, chains
from truestep.verify.runs import Runner
from truestep.verify.ways import OUTCOME, Way
from truestep.watch.launch.scratch import Scratch

MIN_TARGETS = 300
NUM_COMMANDS = 102
NUM_RARE_RUNS = 6
MAX_S = 900
MAX_TRIES = 3


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What verify said of one target, or of a clean script."""

    way: str
    words: str
    said: str
    """`same`, `different`, `inconclusive`, or `void`: the runs did the same by chance, three times."""
    what: str | None = None
    named: str | None = None
    line: int | None = None
    is_cause: bool = False
    is_line: bool = False
    is_proved: bool = False
    reason: str | None = None
    seconds: float = 0.0


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder for a script, with the place beside it where the script says what it has changed."""
    with tempfile.TemporaryDirectory(prefix="oracle-") as name:
        work = Path(name).resolve() / "work"
        work.mkdir()
        yield work


def _log(work: Path) -> list[str]:
    path = planting.log_of(work)
    return path.read_text().splitlines() if path.exists() else []


def compare(target: Target) -> Answer:
    """Run a planted script twice, and compare the runs as the command does."""
    begun, way = perf_counter(), "compared"
    for _ in range(MAX_TRIES):
        with _folder() as work, Scratch(work) as scratch:
            path = planting.write(work, target.script, target)
            script = Script(path=str(scratch.work / path.name))
            runner = Runner(script=script, scratch=scratch, steps=None)
            first, second = (runner.run(Way(kind=kind)) for kind in ("first", "again"))
            log = _log(work)
        seconds = perf_counter() - begun
        if first.code or second.code or len(log) != 2:
            reason = f"exit codes {first.code}, {second.code}, {len(log)} changes. {first.tail}{second.tail}"
            return Answer(way=way, words=target.words, said="inconclusive", reason=reason, seconds=seconds)
        if log[0] != log[1]:
            parting = chains.compare(first, second, outcome=OUTCOME)
            what = None if parting is None else parting.what
            said = "same" if parting is None else "different"
            return Answer(way=way, words=target.words, said=said, what=what, seconds=seconds)
    return Answer(way=way, words=target.words, said="void", seconds=seconds)


def command(target: Target) -> Answer:
    """Run the whole command on a planted script, and hold cause and line against the truth."""
    source, begun = SOURCES[target.source], perf_counter()
    num_runs = NUM_RARE_RUNS if source.is_rare else 2
    for _ in range(MAX_TRIES):
        with _folder() as work:
            path = planting.write(work, target.script, target)
            told = _verify(work, "--runs", str(num_runs), is_cold=source.is_cold)
            changes = set(_log(work)[:num_runs])
        if len(changes) > 1 or told["same"] is not True:
            break
    found = told["first_difference"] or {}
    said = {True: "same", False: "different"}.get(told["same"], "inconclusive")
    return Answer(
        way="command",
        words=target.words,
        said="void" if len(changes) < 2 and said == "same" else said,
        what=found.get("what"),
        named=found.get("name"),
        line=found.get("line"),
        is_cause=found.get("name") in source.names,
        is_line=found.get("file") == str(path) and found.get("line") == target.planted_line,
        is_proved=bool(found.get("proved")),
        reason=told.get("reason"),
        seconds=perf_counter() - begun,
    )


def clean(script: str) -> Answer:
    """Run the whole command on a script in which nothing is planted."""
    begun = perf_counter()
    with _folder() as work:
        planting.write(work, script)
        told = _verify(work)
    said = {True: "same", False: "different"}.get(told["same"], "inconclusive")
    found = told["first_difference"] or {}
    return Answer(
        way="clean",
        words=script,
        said=said,
        what=found.get("what"),
        named=found.get("name"),
        line=found.get("line"),
        is_proved=bool(found.get("proved")),
        reason=told.get("reason"),
        seconds=perf_counter() - begun,
    )


def _verify(work: Path, *words: str, is_cold: bool = False) -> dict[str, Any]:
    environment = {**os.environ, **({preloaded.COLD: "1"} if is_cold else {})}
    given = [Path(sys.executable).with_name("truestep"), "verify", "--format", "json", *words, "train.py"]
    try:
        done = subprocess.run(
            given, cwd=work, env=environment, capture_output=True, text=True, check=False, timeout=MAX_S
        )
        return dict(json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        return {"same": None, "first_difference": None, "reason": f"not ended after {MAX_S} s"}
    except ValueError:
        return {"same": None, "first_difference": None, "reason": done.stderr[-2000:]}


def wilson(num: int, of: int) -> tuple[float, float]:
    """Return the 95 % interval of a share."""
    if not of:
        return 0.0, 1.0
    z, share = 1.959964, num / of
    middle, half = share + z * z / (2 * of), z * sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    low, high = ((middle + side) / (1 + z * z / of) for side in (-half, half))
    return low if num else 0.0, high if num < of else 1.0


def figures(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """Return the counts with their intervals. Targets whose runs did the same by chance are none."""
    planted = [answer for answer in answers if answer.way != "clean" and answer.said != "void"]
    compared = [answer for answer in planted if answer.way == "compared"]
    asked = [answer for answer in planted if answer.way == "command"]
    untouched = [answer for answer in answers if answer.way == "clean"]
    different = [answer for answer in asked if answer.said == "different"]
    rows = [
        ("called the same, though it differs (runs compared)", _said(compared, "same"), len(compared)),
        ("called the same, though it differs (whole command)", _said(asked, "same"), len(asked)),
        ("inconclusive, though it differs", _said(planted, "inconclusive"), len(planted)),
        ("wrong cause called proved", sum(a.is_proved and not a.is_cause for a in different), len(different)),
        ("right cause named and proved", sum(a.is_proved and a.is_cause for a in different), len(different)),
        (
            "right cause named, not proved",
            sum(a.is_cause and not a.is_proved for a in different),
            len(different),
        ),
        ("cause not found", sum(a.named == "unknown" for a in different), len(different)),
        ("another cause named, not proved", sum(_is_astray(a) for a in different), len(different)),
        ("line of the cause named", sum(a.is_line for a in different), len(different)),
        ("clean script called different", _said(untouched, "different"), len(untouched)),
        ("clean script inconclusive", _said(untouched, "inconclusive"), len(untouched)),
    ]
    return [{"figure": text, "found": num, "of": of, "interval": wilson(num, of)} for text, num, of in rows]


def _said(answers: Sequence[Answer], said: str) -> int:
    return sum(answer.said == said for answer in answers)


def _is_astray(answer: Answer) -> bool:
    return not answer.is_cause and not answer.is_proved and answer.named != "unknown"


def is_wrong(answer: Answer) -> bool:
    """Whether an answer breaks the claim."""
    if answer.way == "clean":
        return answer.said != "same"
    return answer.said in ("same", "inconclusive") or (answer.is_proved and not answer.is_cause)


def choose(targets: Sequence[Target], num: int, *, rotation: int = 0) -> list[Target]:
    """Return so many targets, spread over all, others with each rotation."""
    num = min(num, len(targets))
    return [targets[(place * len(targets) // num + rotation) % len(targets)] for place in range(num)]


@contextmanager
def preloaded_python() -> Iterator[None]:
    """Start scripts from a Python that has torch imported already, if this is not such a one."""
    if preloaded.FOLDER in os.environ:
        yield
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="oracle-python-") as name:
        preloaded.install(Path(name))
        os.environ[preloaded.FOLDER] = name
        preloaded.use(Path(name))
        yield


def render(answers: Sequence[Answer]) -> None:
    """Print the figures, and each answer that breaks the claim."""
    console = Console(width=None if sys.stdout.isatty() else 130)
    table = Table(title="truestep verify against the truth", title_justify="left")
    for name in ("figure", "found", "of", "95 % interval"):
        table.add_column(name, justify="left" if name == "figure" else "right")
    for row in figures(answers):
        low, high = row["interval"]
        table.add_row(row["figure"], str(row["found"]), str(row["of"]), f"{low:.1%} to {high:.1%}")
    console.print(table)
    for answer in answers:
        if is_wrong(answer) or (answer.way == "command" and _is_astray(answer)):
            console.print(f"{answer.way} {answer.words}: {answer.said}, {answer.named}, {answer.reason}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", help="scripts, with commas between them")
    parser.add_argument("--targets", type=int, help="how many targets to compare; all if not given")
    parser.add_argument("--commands", type=int, default=NUM_COMMANDS, help="how many with the whole command")
    parser.add_argument("--sources", help="causes to plant for those, with commas between them")
    parser.add_argument("--rotation", type=int, default=0, help="which targets are chosen")
    parser.add_argument("--cold", action="store_true", help="with causes that need a Python started anew")
    parser.add_argument("--jobs", type=int, default=2, help="targets at a time")
    parser.add_argument("--at-least", type=int, default=MIN_TARGETS, help="how many targets the claim needs")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    args = parser.parse_args()
    names = args.only.split(",") if args.only else planting.script_names()
    targets = [target for target in planting.all_targets() if target.script in names]
    chosen = choose(targets, len(targets) if args.targets is None else args.targets, rotation=args.rotation)
    kinds = (
        args.sources.split(",")
        if args.sources
        else [k for k, s in SOURCES.items() if args.cold or not s.is_cold]
    )
    asked = planting.with_sources(choose(targets, args.commands, rotation=args.rotation), kinds)
    work = (
        [(compare, item) for item in chosen]
        + [(command, item) for item in asked]
        + [(clean, n) for n in names]
    )
    with preloaded_python(), ThreadPoolExecutor(args.jobs) as pool:
        answers = list(pool.map(lambda job: _report(job[0](job[1])), work))
    num_targets = sum(answer.way != "clean" and answer.said != "void" for answer in answers)
    holds = not any(map(is_wrong, answers)) and num_targets >= args.at_least
    if args.json:
        told = {"holds": holds, "targets": num_targets, "figures": figures(answers)}
        print(json.dumps({**told, "answers": [asdict(answer) for answer in answers]}, indent=2))
    else:
        render(answers)
        print(f"{num_targets} targets, {dict(Counter(answer.said for answer in answers))}: {holds=}")
    return 0 if holds else 1


def _report(answer: Answer) -> Answer:
    mark, proof = "WRONG " if is_wrong(answer) else "", ", proved" if answer.is_proved else ""
    found = answer.named or answer.what or ""
    print(f"{mark}{answer.way} {answer.words}: {answer.said} {found}{proof}", file=sys.stderr)
    return answer


if __name__ == "__main__":
    sys.exit(main())
