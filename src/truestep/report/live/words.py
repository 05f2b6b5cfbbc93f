"""Numbers in words that fit a line: counts, durations, values of any size."""

import math

from truestep.report.numerals import size

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def number(value: float) -> str:
    """Return a value in at most about nine characters, with four digits that count."""
    if not math.isfinite(value):
        return str(value)
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:.3e}"


def value_of(name: str, value: float) -> str:
    """Return a named value; one whose name says that it counts bytes gets its unit."""
    return size(value) if name.endswith("_bytes") and math.isfinite(value) else number(value)


def reading(name: str, value: object) -> str:
    """Return what a metric gave: a number as one, anything else as it is written."""
    try:
        return value_of(name, float(value)) if isinstance(value, int | float) else str(value)
    except OverflowError:
        return "a number too large to hold"


def duration(seconds: float) -> str:
    """Return a duration in its two largest units."""
    if not math.isfinite(seconds):
        return "?"
    whole = int(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE:02} s"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE:02} min"
    return f"{whole // _DAY:,} d {whole % _DAY // _HOUR} h"


def count(num: int, thing: str) -> str:
    """Return `1 process` or `4 processes`."""
    ending = "es" if thing.endswith("s") else "s"
    return f"{num:,} {thing}" if num == 1 else f"{num:,} {thing}{ending}"


def sameness(same: object) -> str:
    """Return the answer of verify; an untrusted record may hold anything, which is inconclusive."""
    return "same" if same is True else "different" if same is False else "inconclusive"
