"""Compiled code against eager code: what the script's process found out.

Owns reading it and its words. The comparison is made in the script's process: `watch.control.compiling`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from truestep import plainfile
from truestep.verify.causes import FoundCause

RESULT_FILE = "compiled.json"
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
    apart = "another shape" if found["apart"] is None else f"{found['apart']:.1g} from {told['judge']}"
    own = f"eager code is {found['eager_apart']:.1g} from it"
    evidence = [f"first off in {_STAGES[found['stage']]}", f"{found['value']} is {apart}; {own}"]
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
