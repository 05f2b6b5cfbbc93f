"""What `torch.compile` has compiled, how often, why again, and how long it took.

Owns the reading of the compiler's own record, once, when the script has ended. Imports no compiler.
"""

import sys
from typing import Any

from truestep.watch.evidence.facts.passes import Recompilations
from truestep.watch.script.tape import Tape

_MAX_CHARACTERS = 160


def watch(tape: Tape) -> None:
    """Note each piece that was compiled."""

    def closing() -> None:
        dynamo: Any = sys.modules.get("torch._dynamo.utils")
        if dynamo is None:
            return
        rows = [_row(tape, item) for item in dynamo.get_compilation_metrics() if item.co_filename]
        if rows:
            tape.note(Recompilations(rows))

    tape.listeners["closing"].append(closing)


def _row(tape: Tape, item: Any) -> list[Any]:
    """Return file if the user's, line, name, seconds, why again if so, and whether we are in the way."""
    return [
        item.co_filename if tape.sites.is_own(item.co_filename) else None,
        item.co_firstlineno,
        item.co_name,
        item.entire_frame_compile_time_s or 0.0,
        (item.recompile_reason or "")[:_MAX_CHARACTERS],
        any("truestep.watch" in reason for reason in item.restart_reasons or ()),
    ]
