"""Errors that end a script from elsewhere: raised by handlers of signals, or by a script that ends itself.

Owns telling the first from errors of our own, and the reason of the second. Python calls handlers wherever it
is, also in code of ours: a script that ends a slow step by an alarm must get its error.
"""

import signal
from types import CodeType
from typing import Any


def is_from_handler(error: BaseException) -> bool:
    """Whether a handler of the script's has raised an error, or was under way when it was raised."""
    codes = _codes_of_handlers()
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def _codes_of_handlers() -> set[CodeType]:
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    functions: list[Any] = [getattr(handler, "__func__", handler) for handler in handlers]
    return {function.__code__ for function in functions if hasattr(function, "__code__")}


def reason_of(error: BaseException | None) -> str | None:
    """Return why a script has ended itself: what it gave `sys.exit`, or what argparse found wrong."""
    if error is None or getattr(error, "code", None) in (None, 0):
        return None
    code = getattr(error, "code", None)
    trace = error.__traceback__
    while trace is not None and not isinstance(code, str):
        frame, trace = trace.tb_frame, trace.tb_next
        if frame.f_globals.get("__name__") == "argparse" and frame.f_code.co_name == "error":
            code = frame.f_locals.get("message")
    return code if isinstance(code, str) else None
