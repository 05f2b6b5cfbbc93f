"""Copies of the process that watching makes: what the script does when it forks is not done for them.

Owns `os.register_at_fork`. What Python, torch and we do at a fork is done all the same: it frees locks.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from truestep.watch.tape import Tape
from truestep.watch.wrap import Wraps, drop_frame, unseen

Function = Callable[..., Any]


def watch_os(tape: Tape) -> None:
    """Observe what is registered to be called at a fork."""
    if tape.plan.inspect and hasattr(os, "register_at_fork"):
        Wraps(tape).put("register_at_fork", lambda register: _wrap_register(register, tape), os)


@contextmanager
def copying(tape: Tape) -> Iterator[None]:
    """Fork in here without the script's being told."""
    tape.is_copying = True
    try:
        yield
    finally:
        tape.is_copying = False


def _wrap_register(register: Function, tape: Tape) -> Function:
    def wrapper(**given: Any) -> Any:
        if not tape.sites.is_engine(sys._getframe(2).f_code.co_filename):
            given = {
                name: _unless_copying(act, tape) if callable(act) else act for name, act in given.items()
            }
        try:
            return register(**given)
        except BaseException as error:
            drop_frame(error)
            raise

    return wrapper


def _unless_copying(act: Function, tape: Tape) -> Function:
    def wrapper() -> None:
        if not tape.is_copying:
            try:
                act()
            except BaseException as error:
                drop_frame(error)
                raise

    return unseen(wrapper, act)
