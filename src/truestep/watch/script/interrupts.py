"""Errors that handlers of signals raise: Python calls those wherever it is, also in code of ours.

Owns telling them from errors of our own. A script that ends a slow step by an alarm must get its error.
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
