"""Training scripts in which one tensor is made to differ from run to run: the truth that verify is held to.

A line `# plant 0-3: A | B` in a script names tensors that are alive there, and the steps in which one of them
may be changed; `# plant: A | B` stands outside of the loop. With `large` no change of the last bits is tried:
the next step would round it away before it is looked at. Planting puts one statement in the line's place.
"""

from __future__ import annotations

import re
import shutil
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

FOLDER = Path(__file__).parent
_MARK = re.compile(
    r"^(?P<indent> *)# plant(?: (?P<first>\d+)-(?P<last>\d+))?(?P<large> large)?: (?P<targets>.+)$"
)
_IMPORTS = "import os, random, secrets, time, uuid; import numpy; from nudge import nudge"
_SIZES = ("ulp", "large", "small")


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where the number comes from that makes runs differ; how verify may call it; how many values it has."""

    draw: str
    names: frozenset[str]
    is_rare: bool = False
    """Whether two runs agree half of the time."""
    is_cold: bool = False
    """Whether it takes a Python that is started anew: forks of one share hash seed and addresses."""


def _source(draw: str, *names: str, is_rare: bool = False, is_cold: bool = False) -> Source:
    return Source(draw=draw, names=frozenset(names), is_rare=is_rare, is_cold=is_cold)


ENTROPY = _source('int.from_bytes(os.urandom(8), "little")', "drawn-from-system")
SOURCES = {
    "entropy": ENTROPY,
    "secrets": _source("secrets.randbits(60)", "drawn-from-system"),
    "uuid": _source("uuid.uuid4().int >> 66", "drawn-from-system"),
    "system-random": _source("random.SystemRandom().getrandbits(60)", "drawn-from-system"),
    "random": _source("random.getrandbits(60)", "unseeded-random"),
    "random-object": _source("random.Random().getrandbits(60)", "unseeded-random", "drawn-from-system"),
    "numpy": _source("int(numpy.random.randint(1 << 60))", "unseeded-numpy"),
    "numpy-object": _source("int(numpy.random.default_rng().integers(1 << 60))", "unseeded-numpy"),
    "clock": _source("time.time_ns()", "clock-branch"),
    "timer": _source("time.perf_counter_ns() // 100", "clock-branch"),
    "pid": _source("os.getpid() ** 3", "seeded-from-system"),
    "reseeded-torch": _source("torch.seed()", "unseeded-torch", "late-seed-torch"),
    "own-generator": _source("torch.Generator().seed()", "unseeded-torch", "late-seed-torch"),
    "coin": _source("os.urandom(1)[0] & 1", "drawn-from-system", is_rare=True),
    "random-coin": _source("random.getrandbits(1)", "unseeded-random", is_rare=True),
    "hash": _source('hash("text") & 0xFFFFFFFF', "set-order", is_cold=True),
    "address": _source("id(nudge) >> 4", "address-dependence", "object-set-order", is_cold=True),
}
"""Causes that can be planted."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """One tensor of one script, changed at one line in one step."""

    script: str
    line: int
    """In the script as it is, from 1."""
    expression: str
    step: int | None
    size: str
    source: str = "entropy"

    @property
    def words(self) -> str:
        """What is printed of it."""
        when = "" if self.step is None else f" step {self.step}"
        return f"{self.script}: {self.expression}{when} ({self.size}, {self.source})"

    @property
    def planted_line(self) -> int:
        """The line of the statement in the planted script: one line of imports is added."""
        return self.line + 1


def script_names() -> list[str]:
    """Return the names of all scripts."""
    return sorted(path.stem for path in (FOLDER / "scripts").glob("*.py"))


def all_targets() -> list[Target]:
    """Return each tensor twice: changed by its last bits in one step, and by more in another."""
    return [target for name in script_names() for target in _targets_of(name)]


def _targets_of(script: str) -> Iterator[Target]:
    lines = (FOLDER / "scripts" / f"{script}.py").read_text().splitlines()
    for number, line in enumerate(lines, 1):
        if (match := _MARK.match(line)) is None:
            continue
        for expression in match["targets"].split(" | "):
            turn = zlib.crc32(f"{script}{number}{expression}".encode())
            steps: range | None = None
            if match["first"] is not None:
                steps = range(int(match["first"]), int(match["last"]) + 1)
            for variant in range(2):
                step = None if steps is None else steps[(turn + variant) % len(steps)]
                size = _SIZES[1 + (turn + variant) % 2] if variant or match["large"] else "ulp"
                yield Target(script=script, line=number, expression=expression, step=step, size=size)


def with_sources(targets: Sequence[Target], names: Sequence[str]) -> list[Target]:
    """Return targets with one source after the other, so that each meets many kinds of state."""
    return [replace(target, source=names[place % len(names)]) for place, target in enumerate(targets)]


def write(folder: Path, script: str, target: Target | None = None) -> Path:
    """Write a script into a folder, with what is planted in it, if given; return its path."""
    lines = (FOLDER / "scripts" / f"{script}.py").read_text().splitlines()
    if target is not None:
        match = _MARK.match(lines[target.line - 1])
        assert match is not None, target
        condition = "" if target.step is None else f"if step == {target.step}: "
        draw = SOURCES[target.source].draw
        call = f"nudge({target.expression}, {draw}, {target.size!r})"
        lines[target.line - 1] = f"{match['indent']}{condition}{call}"
    lines.insert(2, _IMPORTS)  # after the docstring and a blank line
    path = folder / "train.py"
    path.write_text("\n".join(lines) + "\n")
    shutil.copyfile(FOLDER / "nudge.py", folder / "nudge.py")
    (folder / "log.txt").write_text(str(log_of(folder)))
    return path


def log_of(folder: Path) -> Path:
    """Return where each run of a script in this folder adds what it has changed: beside the folder."""
    return folder.parent / "log"
