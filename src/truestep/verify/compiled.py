"""Compiled code against eager code: what the script's process found out.

Owns reading it and its words. The comparison is made in the script's process: `watch.control.compiling`.
"""

from pathlib import Path
from typing import Any

from truestep.base import plainfile
from truestep.verify.causes import FoundCause

RESULT_FILE = "compiled.json"
AUDIT = "truestep.watch.control.compiling:audit"


def read(folder: Path) -> dict[str, Any] | None:
    """Return what was found; None if the process left nothing."""
    try:
        found: dict[str, Any] = plainfile.read_json(folder / RESULT_FILE)
    except (OSError, ValueError):
        return None
    return found


def explain(told: dict[str, Any]) -> FoundCause:
    """Return the module and the line of a difference that is not rounding."""
    return FoundCause(
        name="miscompiled",
        file=told["file"],
        line=told["line"],
        module=f"{told['module'] or 'the model itself'} ({told['kind']})",
        evidence=[f"judged by {told['judge']}: {told['distance']}"],
        is_proved=True,
    )


def compiled_lines(told: dict[str, Any] | None) -> list[str]:
    """Return what is known of compiled code that is within rounding, a line each."""
    if told is None or told["is_beyond"]:
        return []
    return [f"compiled: no more than rounding, judged by {told['judge']}"]
