"""Compiled code against eager code: what the script's process found out.

Owns reading it and its words. The comparison is made in the script's process: `watch.control.compiling`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from truestep.base import plainfile
from truestep.verify.causes import FoundCause

RESULT_FILE = "compiled.json"
AUDIT = "truestep.watch.control.compiling:audit"
LOWERED = "truestep.watch.control.lowering:compare"
_STAGES = {
    "eager": "dynamo's capture of the graph",
    "aot_eager": "AOT autograd",
    "aot_eager_decomp_partition": "a decomposition, or the partition of forward and backward",
    "inductor": "inductor: a lowering, a pass or a kernel",
}


def read(folder: Path) -> dict[str, Any] | None:
    """Return what was found; None if the process left nothing."""
    try:
        found: dict[str, Any] = plainfile.read_json(folder / RESULT_FILE)
    except (OSError, ValueError):
        return None
    return found


def with_own_files(told: dict[str, Any], original: Callable[[str | None], str | None]) -> dict[str, Any]:
    """Return it with the user's own paths for those of the copied folder."""
    places = ("breaks", "recompilations")
    moved = {name: [{**item, "file": original(item["file"])} for item in told[name]] for name in places}
    return {**told, **moved}


def explain(told: dict[str, Any]) -> FoundCause:
    """Return the module, the operation and the stage of a difference that is no rounding."""
    found = told["found"]
    judge = found.get("judge", told["judge"])
    apart = (
        "of another shape or not finite" if found["apart"] is None else f"{found['apart']:.1g} from {judge}"
    )
    own = f"eager code is {_number(found['eager_apart'])} from it"
    evidence = [f"first off in {_STAGES[found['stage']]}", f"{found['value']} is {apart}; {own}"]
    if ", " in told.get("model", ""):
        evidence.append(f"the model is {found['model']}")
    module = f"{found['module'] or 'the model itself'} ({found['kind']})"
    return FoundCause(
        name="miscompiled",
        file=found.get("file"),
        line=found.get("line"),
        operation=found["operation"],
        module=module,
        evidence=evidence,
        is_proved=True,
    )


def explain_lowered(told: dict[str, Any]) -> FoundCause:
    """Return the module and the operation that lose most in a short format."""
    return FoundCause(
        name="precision-lost",
        file=told["file"],
        line=told["line"],
        operation=told["operation"],
        module=f"{told['module']} ({told['kind']})" if told["module"] else None,
        evidence=[_lowered_words(told)],
        is_proved=True,
    )


def lowered_lines(told: dict[str, Any] | None) -> list[str]:
    """Return what is known of a short format, a line each."""
    if told is None:
        return []
    lines = [f"bfloat16: {_lowered_words(told)}"]
    if told["module"]:
        spared = _number(told["spared_apart"])
        lines.append(f"  module {told['module']} ({told['kind']}) loses most: with it in float32, {spared}")
    if told["operation"]:
        where = f" {told['file']}:{told['line']}" if told["file"] else ""
        distances = f"{_number(told['lost'])} from float64, its inputs {_number(told['inputs_apart'])}"
        lines.append(f"  operation {told['operation']}{where} loses most: {distances}")
    return lines


def _lowered_words(told: dict[str, Any]) -> str:
    return f"{told['value']} {_number(told['apart'])} from float64, float32 {_number(told['plain_apart'])}"


def _number(apart: float | None) -> str:
    return "not finite" if apart is None else f"{apart:.1g}"
