"""How benchmarks measure and report: interleaved turns, spreads, claims with verdicts, tables or JSON.

What is measured, and which claim is made of it, is left to each benchmark.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

from rich.console import Console
from rich.table import Table

T = TypeVar("T")
Row = Mapping[str, float | str | None]
Verdict = Literal["holds", "fails", "undecided", "not measured"]
EXIT_HOLDS, EXIT_FAILS, EXIT_CANNOT_TELL = 0, 1, 2


class Spread(NamedTuple):
    """A median with its quartiles and its own standard error."""

    median: float
    low: float
    high: float
    error: float


def spread(values: Sequence[float]) -> Spread:
    """Summarise repeated measurements; the error is that of a median of normal noise with these quartiles."""
    if len(values) < 2:
        return Spread(values[0], values[0], values[0], math.inf)
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high, 0.93 * (high - low) / math.sqrt(len(values)))


def estimate_with_error(items: Sequence[T], estimate: Callable[[Sequence[T]], float]) -> tuple[float, float]:
    """Return an estimate over all items, and its error from how much it differs between fifths of them.

    Single samples would promise too small an error: a disturbance lasts for many of them.
    """
    num_parts = min(5, len(items))
    if num_parts < 2:
        return estimate(items), math.inf
    parts = [estimate(items[part::num_parts]) for part in range(num_parts)]
    return estimate(items), statistics.stdev(parts) / math.sqrt(num_parts)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement that `found` is at most `limit`; None where it was not measured."""

    text: str
    found: float | None
    limit: float
    error: float = 0.0
    unit: str = ""

    @property
    def verdict(self) -> Verdict:
        """Above the limit by less than two standard errors is no failure, and no success either."""
        if self.found is None:
            return "not measured"
        if self.found <= self.limit:
            return "holds"
        return "fails" if self.found - 2 * self.error > self.limit else "undecided"


def fact(text: str, is_so: bool | None) -> Claim:
    """A claim that is either so or not."""
    return Claim(text=text, found=None if is_so is None else float(not is_so), limit=0.0, unit="yes or no")


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """One table of results: each row maps a column's name to a number, a text, or None for nothing."""

    title: str
    rows: Sequence[Row]
    note: str = ""
    num_digits: int = 1


def report(benchmark: str, *, sheets: Sequence[Sheet], claims: Sequence[Claim], as_json: bool) -> int:
    """Print the results and give back the exit code: 0 all claims hold, 1 one fails, 2 one cannot be told."""
    verdicts = [claim.verdict for claim in claims]
    if as_json:
        document: dict[str, Any] = {
            "benchmark": benchmark,
            "tables": {sheet.title: [dict(row) for row in sheet.rows] for sheet in sheets},
            "claims": [
                {"text": c.text, "found": c.found, "limit": c.limit, "error": c.error, "verdict": c.verdict}
                for c in claims
            ],
        }
        json.dump(_finite(document), sys.stdout, indent=2)
        print()
    else:
        console = Console(width=None if sys.stdout.isatty() else 130)
        for sheet in sheets:
            console.print(_render(sheet))
        console.print(_render_claims(claims))
    if "fails" in verdicts:
        return EXIT_FAILS
    return EXIT_HOLDS if all(verdict == "holds" for verdict in verdicts) else EXIT_CANNOT_TELL


def _finite(value: Any) -> Any:
    """JSON has no infinity: an error of a single measurement becomes null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _render(sheet: Sheet) -> Table:
    table = Table(title=sheet.title, caption=sheet.note or None, caption_justify="left", title_justify="left")
    for name in sheet.rows[0] if sheet.rows else ():
        is_text = isinstance(sheet.rows[0][name], str)
        table.add_column(name, justify="left" if is_text else "right")
    for row in sheet.rows:
        table.add_row(*(_cell(value, num_digits=sheet.num_digits) for value in row.values()))
    return table


def _cell(value: float | str | None, *, num_digits: int) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else f"{value:,.{num_digits}f}"


def _render_claims(claims: Sequence[Claim]) -> Table:
    table = Table(title="Claims", title_justify="left")
    for name in ("claim", "found", "limit", "verdict"):
        table.add_column(name, justify="right" if name in ("found", "limit") else "left")
    for claim in claims:
        found, limit = "", ""
        if claim.found is not None:
            is_fact = claim.unit == "yes or no"
            found = ("no" if claim.found else "yes") if is_fact else f"{claim.found:.4g} {claim.unit}".strip()
            limit = "yes" if is_fact else f"{claim.limit:.4g} {claim.unit}".strip()
            if claim.error and math.isfinite(claim.error):
                found += f" ± {claim.error:.2g}"
        colour = {"holds": "green", "fails": "red"}.get(claim.verdict, "yellow")
        table.add_row(claim.text, found, limit, f"[{colour}]{claim.verdict}[/]")
    return table
