"""What `torch.compile` has compiled, how often, why again, and how long it took.

Owns the reading of the compiler's own record, once, when the script has ended. Imports no compiler.
"""

import sys
from typing import Any

from truestep.watch.evidence.facts.passes import CompiledPiece, Recompilations
from truestep.watch.script.tape import Tape

_MAX_CHARACTERS = 160


def watch(tape: Tape) -> None:
    """Note each piece that is compiled from here on: in a notebook others may have been, before."""
    before = _compiled()

    def closing() -> None:
        known = {id(item) for item in before}
        new = [item for item in _compiled() if item.co_filename and id(item) not in known]
        if new:
            tape.note(Recompilations([_piece(tape, item) for item in new]))

    tape.listen(closing=closing)


def _compiled() -> list[Any]:
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    return [] if dynamo is None else dynamo.get_compilation_metrics()


def _piece(tape: Tape, item: Any) -> CompiledPiece:
    return CompiledPiece(
        file=item.co_filename if tape.sites.is_own(item.co_filename) else None,
        line=item.co_firstlineno,
        name=item.co_name,
        took_s=item.entire_frame_compile_time_s or 0.0,
        reason=(item.recompile_reason or "")[:_MAX_CHARACTERS],
        is_disturbed=any("truestep.watch" in reason for reason in item.restart_reasons or ()),
    )
