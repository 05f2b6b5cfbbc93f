"""Compiled code: what torch.compile traces must be torch's own functions, or the graph and its bits change.

Owns what is compiled whole. Where a compiled function trains, all hooks are taken away before it is traced.
"""

import re
import sys
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from truestep.watch.hooks.table import remove, when_removed
from truestep.watch.script.tape import Tape

_WATCH = ("hooks", "operations", "inspect", "script", "digests")
_IN_SCRIPT = (
    *(f"truestep.watch.{name}" for name in _WATCH),
    "truestep.show",
    "truestep.replay",
)
"""What observes in the script's process. What `control` puts in place of torch's functions is compiled."""
_TRAINS = frozenset({"backward", "zero_grad"})
_OPTIMIZER = re.compile("opt", re.IGNORECASE)


def watch_compiler(tape: Tape) -> None:
    """Let the compiler pass over our frames, and step aside where it compiles a training step."""
    _skip_our_frames()

    def begins(_: Any) -> None:
        code = _code_to_compile()
        if code is None or not tape.is_on or tape.under_way.is_inside or not _trains(code):
            return
        if not tape.sites.is_engine(code.co_filename):
            tape.attempt(lambda tape: _step_aside(tape, code))

    callbacks = sys.modules["torch._dynamo.callback"].callback_handler.start_callbacks
    callbacks.append(begins)
    when_removed(lambda: callbacks.remove(begins) if begins in callbacks else None)


@cache
def _skip_our_frames() -> None:
    """Tell the compiler once: each time adds to a list of its own."""
    for package in _IN_SCRIPT:
        sys.modules["torch._dynamo.trace_rules"].add(package)


def _step_aside(tape: Tape, code: CodeType) -> None:
    place = f"{Path(code.co_filename).name}:{code.co_firstlineno}"
    tape.withdraw(
        f"{code.co_name}() at {place} is compiled and trains the model, and nothing in compiled code can be "
        "observed. Run the script uncompiled: set the variable TORCH_COMPILE_DISABLE=1."
    )
    remove()


def _code_to_compile() -> CodeType | None:
    """Return the code that the compiler is about to trace; its own function for that is on the stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        home = frame.f_globals.get("__name__")
        if (frame.f_code.co_name, home) == ("_compile", "torch._dynamo.convert_frame"):
            code = frame.f_locals.get("code")
            return code if isinstance(code, CodeType) else None
        frame = frame.f_back
    return None


def _trains(code: CodeType) -> bool:
    """Whether code calls backward, or steps something that is called an optimizer."""
    names = {*code.co_names, *code.co_freevars, *code.co_varnames}
    return bool(_TRAINS & names) or ("step" in names and any(map(_OPTIMIZER.match, names)))
