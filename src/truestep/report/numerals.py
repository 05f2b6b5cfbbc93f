"""Numbers, sizes and durations as people write them.

Owns their words. Where they stand is left to the page.
"""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any


def plain(value: object) -> str:
    """Write a number with as many digits as tell something; anything else as it is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < 10**15 else f"{value:.4e}" if abs(value) < 10**300 else str(value)
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else "infinite" if value > 0 else "minus infinite"
    return f"{value:,.0f}" if 10_000 <= abs(value) < 10**15 else f"{value:.4g}"


def compared_steps(answer: Mapping[str, Any]) -> str:
    """Write how many steps an answer of `verify` is about, and of how many: the record may lack either."""
    num, expected = answer.get("steps"), answer.get("expected_steps")
    if type(num) is not int:
        return "the steps compared"
    steps = "step" if num == 1 else "steps"
    if answer.get("whole") is True:
        return f"all {num:,} {steps}" if num > 1 else "its only step"
    of = f" of about {expected:,}" if type(expected) is int else ""
    return f"the first {num:,}{of} {'steps' if of else steps}"


def count(num: int, word: str, *, plural: str = "") -> str:
    """Write how many of something there are."""
    return f"{num:,} {word if num == 1 else plural or word + 's'}"


def size(num_bytes: float) -> str:
    """Write a number of bytes with its unit, by thousands."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(num_bytes) < 1000:
            return f"{num_bytes:.4g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:,.4g} TB"


def duration(seconds: float) -> str:
    """Write a time span by its two largest units."""
    if not 0 <= seconds < 1e12:
        return plain(seconds) + " s"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = ((days, "d"), (hours, "h"), (minutes, "min"), (rest_s, "s"))
    first = next(index for index, (num, _) in enumerate(parts) if num)
    return " ".join(f"{num:,} {unit}" for num, unit in parts[first : first + 2] if num)


def moment(time_s: float) -> str:
    """Write a point in time, in UTC as the record's readers may live anywhere."""
    try:
        return datetime.fromtimestamp(time_s, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return plain(time_s)


def number(value: float) -> str:
    """Write a value in at most about nine characters, with four digits that count."""
    if not math.isfinite(value):
        return str(value)
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:.3e}"


def value_of(name: str, value: float) -> str:
    """Write a named value; one whose name says that it counts bytes gets its unit."""
    return size(value) if name.endswith("_bytes") and math.isfinite(value) else number(value)


def reading(name: str, value: object) -> str:
    """Write what a metric gave: a number as one, anything else as it is written."""
    try:
        return value_of(name, float(value)) if isinstance(value, int | float) else str(value)
    except OverflowError:
        return "a number too large to hold"
