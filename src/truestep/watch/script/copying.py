"""Copies of the process that watching makes: what the script does when it forks is not done for them.

Owns `os.register_at_fork`. What Python, torch and we do at a fork is done all the same: it frees locks.
"""

import os
from typing import Any

from truestep.watch.hooks.table import Function, Hook, calling_frame, drop_frames, put, unseen
from truestep.watch.script.tape import Tape


def watch_os(tape: Tape) -> None:
    """Observe what is registered to be called at a fork."""
    if tape.plan.inspect and hasattr(os, "register_at_fork"):
        put(tape, [Hook("os.register_at_fork", _register, given=(tape,), changes=True)])


def _register(tape: Tape, register: Function, /, **given: Any) -> Any:
    caller = calling_frame()
    if caller is None or not tape.sites.is_engine(caller.f_code.co_filename):
        given = {name: _unless_copying(act, tape) if callable(act) else act for name, act in given.items()}
    return register(**given)


def _unless_copying(act: Function, tape: Tape) -> Function:
    def wrapper() -> None:
        if not tape.under_way.is_copying:
            try:
                act()
            except BaseException as error:
                drop_frames(error)
                raise

    return unseen(wrapper, act)
