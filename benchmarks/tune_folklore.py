"""What each piece of the usual speed advice did to each script of benchmarks/tune: a ratio with its interval.

A ratio of 1.20 means 20 % more steps in the same time, 0.80 means 20 % fewer. The script with the advice and
the script without take turns, in processes of their own; the interval is that of a median, 98 % sure.
Advice that cannot be followed on a script or on this machine is left out, with the reason.
Claimed is only that each cell was measured or left out for a reason. About 6 minutes a script; with --keep
FILE it goes on where it was stopped, and prints again what it has.
Exit code: 0, or 1 if a cell could not be measured.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table
from tune_scripts import (
    SCRIPTS,
    Kept,
    compared,
    elsewhere,
    extra_knob,
    knobs_with,
    look_at,
    machine,
    num_cores,
    pick_names,
    say,
    script_of,
)

from truestep.tune.knob import WORTH, ScriptFacts, Skip

DETERMINISTIC = extra_knob("deterministic", {"deterministic": True}, "deterministic algorithms")
KNOBS = knobs_with(DETERMINISTIC)
NUM_PAIRS = 16
"""From here on an interval leaves out the two best and the two worst pairs."""
Cell = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Advice:
    """A piece of advice: which knob is turned to what, compared with what."""

    words: str
    knob: str
    value: Any = None
    """None: what the knob itself proposes for the script."""
    base: Mapping[str, Any] = field(default_factory=dict)
    is_asked: bool = False
    """Whether the knob itself says if the value can be used on a script; else it always can."""
    extra_s: float = 0.0
    """What it takes before the first step, over the script as it stands."""


WORKERS = {"workers": num_cores()}
ADVICE = {
    "workers": Advice(words="workers = cores", knob="workers", value=num_cores()),
    "workers_4": Advice(words="4 workers", knob="workers", value=4),
    "persistent": Advice(words="persistent workers", knob="persistent", value=True, base=WORKERS),
    "prefetch": Advice(words="prefetch 4", knob="prefetch", value=4, base=WORKERS),
    "threads_1": Advice(words="1 thread", knob="threads", value=1),
    "threads": Advice(words="threads = cores", knob="threads", value=num_cores()),
    "autocast": Advice(words="autocast bf16", knob="autocast", value="bf16", is_asked=True),
    "compile": Advice(words="compile", knob="compile", value="default", is_asked=True, extra_s=150.0),
    "channels_last": Advice(words="channels last", knob="channels_last", value=True, is_asked=True),
    "fused": Advice(words="fused optimizer", knob="fused", value=True, is_asked=True),
    "foreach": Advice(words="foreach optimizer", knob="foreach", value=True, is_asked=True),
    "zeros": Advice(words="zero_grad(set_to_none=False)", knob="set_to_none", value=False),
    "high": Advice(words="matmul precision high", knob="matmul_precision", value="high", is_asked=True),
    "medium": Advice(words="matmul precision medium", knob="matmul_precision", value="medium", is_asked=True),
    "recompute": Advice(words="activation checkpointing", knob="recompute", is_asked=True),
    "deterministic": Advice(words="deterministic algorithms", knob="deterministic"),
    "cudnn": Advice(words="cudnn.benchmark", knob="cudnn_benchmark", value=True, is_asked=True),
}
"""As the notes have it; those with a base are about workers, and are compared with workers = cores."""


def settle(advice: Advice, facts: ScriptFacts) -> tuple[Any, str | None]:
    """Return the value that is tried on a script, or why none is."""
    knob = KNOBS[advice.knob]
    if advice.knob == "threads" and facts.threads == advice.value:
        return None, "that is what torch takes by itself"
    if advice.value is not None and not advice.is_asked:
        return advice.value, None
    proposed = knob.propose(facts, advice.base)
    if isinstance(proposed, Skip):
        return None, proposed.reason
    values = [choice.value for choice in proposed]
    if advice.value is not None and advice.value not in values:
        return None, "this processor has no instructions for it"
    return (values[0] if advice.value is None else advice.value), None


def measure(name: str, advice: Advice, *, seconds: float, look: tuple[ScriptFacts, float]) -> Cell:
    """Return one cell of the table."""
    facts, start_s = look
    value, reason = settle(advice, facts)
    if reason is not None:
        return {"skipped": reason}
    limit_s = seconds + 2 * start_s + advice.extra_s
    other = {**advice.base, advice.knob: value}
    return compared(name, advice.base, other, seconds=limit_s, knobs=KNOBS, min_pairs=NUM_PAIRS)


def measure_script(name: str, picked: Sequence[str], *, kept: Kept, seconds: float) -> dict[str, Cell]:
    """Return a column of the table."""
    found: dict[str, Cell] = {}
    look: list[tuple[ScriptFacts, float]] = []
    for key in picked:

        def make(key: str = key) -> Cell:
            if not look:
                look.append(look_at(script_of(name)))
            cell = measure(name, ADVICE[key], seconds=seconds, look=look[0])
            say(f"{name}, {ADVICE[key].words}: {in_words(cell)}")
            return cell

        found[key] = kept.part(f"{name}/{key}", make)
    return found


def in_words(cell: Cell) -> str:
    """Return a cell in one line."""
    if "ratio" in cell:
        ratio = cell["ratio"]
        return f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"
    return f"not measured: {cell['failed']}" if "failed" in cell else f"left out: {cell['skipped']}"


def verdict(cell: Cell) -> str:
    """Return whether it is `faster` or `slower` by enough to matter, with its whole interval."""
    if "ratio" not in cell:
        return "none"
    if cell["ratio"]["low"] > WORTH:
        return "faster"
    return "slower" if cell["ratio"]["high"] < 1 / WORTH else "no clear difference"


def print_markdown(cells: Mapping[str, Mapping[str, Cell]], picked: Sequence[str], *, where: str) -> None:
    """Print the table and its notes as Markdown: a row for each piece of advice, a column for each script."""
    print("| advice | " + " | ".join(f"`{name}`" for name in cells) + " |")
    print("|---|" + "---|" * len(cells))
    reasons: dict[str, dict[str, list[str]]] = {}
    for key in picked:
        row = []
        for name, column in cells.items():
            mark = {"faster": "**", "slower": "*"}.get(verdict(column[key]), "")
            row.append(_markdown_cell(column[key], mark))
            if "ratio" not in column[key]:
                reason = in_words(column[key]).rstrip(".")
                reasons.setdefault(key, {}).setdefault(reason, []).append(f"`{name}`")
        print(f"| {ADVICE[key].words} | " + " | ".join(row) + " |")
    print(f"\nMeasured on {where}. **Bold** is faster, *italic* is slower, each with its whole interval.")
    if reasons:
        print("\nNot measured:\n")
    for key, by_reason in reasons.items():
        told = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items())
        print(f"- {ADVICE[key].words}. {told}.")


def _markdown_cell(cell: Cell, mark: str) -> str:
    if "ratio" not in cell:
        return "failed" if "failed" in cell else "-"
    ratio = cell["ratio"]
    return f"{mark}{ratio['median']:.2f}{mark} ({ratio['low']:.2f} to {ratio['high']:.2f})"


def print_table(cells: Mapping[str, Mapping[str, Cell]], picked: Sequence[str]) -> None:
    """Print the same for a terminal."""
    table = Table(title="Speed with the advice over speed without", title_justify="left")
    table.add_column("advice")
    for name in cells:
        table.add_column(name, justify="right")
    for key in picked:
        table.add_row(ADVICE[key].words, *(_table_cell(column[key]) for column in cells.values()))
    Console(width=None if Console().is_terminal else 130).print(table)


def _table_cell(cell: Cell) -> str:
    if "ratio" not in cell:
        return "[red]failed[/]" if "failed" in cell else "-"
    ratio = cell["ratio"]
    colour = {"faster": "green", "slower": "red"}.get(verdict(cell), "white")
    return f"[{colour}]{ratio['median']:.2f}[/]\n{ratio['low']:.2f} {ratio['high']:.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scripts", default="", help=f"some of {', '.join(SCRIPTS)}; all if not given")
    parser.add_argument("--advice", default="", help=f"some of {', '.join(ADVICE)}; all if not given")
    parser.add_argument("--seconds", type=float, default=25.0, help="at most for each cell, besides starting")
    parser.add_argument("--keep", help="a JSON file of what is finished")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print JSON instead of a table")
    shape.add_argument("--markdown", action="store_true", help="print a table for the documentation")
    options = parser.parse_args()
    picked = pick_names(options.advice, list(ADVICE))
    names = pick_names(options.scripts, list(SCRIPTS))
    kept = Kept(options.keep)
    where = kept.part("machine", machine)
    with elsewhere():
        cells = {name: measure_script(name, picked, kept=kept, seconds=options.seconds) for name in names}
    if options.json:
        print(json.dumps({"benchmark": "tune_folklore", "machine": where, "cells": cells}, indent=2))
    elif options.markdown:
        print_markdown(cells, picked, where=where)
    else:
        print_table(cells, picked)
    return int(any("failed" in cell for column in cells.values() for cell in column.values()))


if __name__ == "__main__":
    raise SystemExit(main())
