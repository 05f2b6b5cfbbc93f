"""Waits without an end: what the main thread waits for, and whether anything is left that could end it.

Owns what counts as certain. A wait that may end on its own is not one of these: it has no name.
"""

import ast
import linecache
import os
import signal
import sys
import threading
from itertools import islice
from types import FrameType
from typing import Any

from truestep.watch.evidence import kernel

_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_DEBUGGERS = ("pdb", "bdb", "cmd", "IPython")
_LOADER = "torch.utils.data.dataloader"
_FETCHING = ("_get_data", "_try_get_data", "_next_data")
_CONNECTION = "multiprocessing.connection"
_OURS = "truestep"
"""How threads of ours are named: they release no lock of the user's."""


def find_block(frames: list[FrameType], *, pid: int, is_idle: bool, is_still: bool) -> str:
    """Return `input`, `lock`, `queue` or `loader` if the main thread cannot continue; else nothing.

    Idle is a process that does not compute, still a main thread that has not run at all.
    """
    if _has_alarm():
        return ""
    wait, file = kernel.wait_of(pid)
    if wait in ("read", "poll") and (_is_debugged(frames) or (wait == "read" and _is_asking(frames, file))):
        return "input"
    if not is_idle:
        return ""
    if is_still and _are_others_locked(pid):
        if wait == "lock" and _is_at_lock(frames[0]):
            return "lock"
        if wait == "read" and _is_receiving(frames[0]) and kernel.is_own_pipe(pid, file):
            return "queue"
    # A loader wakes every few seconds to see whether its workers live.
    return "loader" if any(map(kernel.is_locked_up, _workers_of_loader(frames))) else ""


def is_of_torch(frame: FrameType) -> bool:
    """Whether a frame is torch's own."""
    return str(frame.f_globals.get("__name__") or "").partition(".")[0] == "torch"


def has_accelerator() -> bool:
    """Whether an accelerator is in use: waits for it look like work."""
    if "torch" not in sys.modules:
        return False
    from truestep.base.device import module_in_use  # noqa: PLC0415 - the script imports torch, not we

    return module_in_use() is not None


def text_of(frame: FrameType) -> str:
    """Return the expression that a frame is evaluating, as it is written; empty if that is not known."""
    positions = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), None)
    if positions is None or None in positions:
        return ""
    first, last, begin, end = positions
    if first != last or first is None:
        return ""
    line = linecache.getline(frame.f_code.co_filename, first).encode()
    return line[begin:end].decode(errors="replace")


def _is_debugged(frames: list[FrameType]) -> bool:
    names = {str(frame.f_globals.get("__name__") or "").partition(".")[0] for frame in frames}
    return bool(names.intersection(_DEBUGGERS))


def _is_at_lock(frame: FrameType) -> bool:
    """Whether a frame waits for one of Python's own locks, which only threads of Python release."""
    module = str(frame.f_globals.get("__name__") or "")
    if module in ("threading", "queue"):
        return True
    return any(isinstance(_value_of(node, frame), _LOCKS) for node in _awaited(frame))


def _awaited(frame: FrameType) -> list[ast.expr]:
    """Return the expressions that may stand for the lock which a frame waits for."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip().partition("#")[0].rstrip()
    try:
        if line.startswith("with ") and line.endswith(":"):  # Python gives it the place of the whole block
            node = ast.parse(f"{line} pass").body[0]
            return [item.context_expr for item in node.items] if isinstance(node, ast.With) else []
        expression = ast.parse(text_of(frame).strip() or "None", mode="eval").body
    except SyntaxError:
        return []
    if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Attribute):
        return [expression.func.value] if expression.func.attr == "acquire" else []
    return [expression]


def _value_of(node: ast.expr, frame: FrameType) -> Any:
    """Return what a name stands for, without a call of anything of the user's."""
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        return _fields_of(_value_of(node.value, frame)).get(node.attr)
    return None


def _fields_of(owner: Any) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return {}
    return fields


def _has_alarm() -> bool:
    """Whether a timer of the process runs: its handler may end any wait."""
    get_timer = getattr(signal, "getitimer", None)
    return get_timer is not None and get_timer(signal.ITIMER_REAL)[0] > 0


def _is_asking(frames: list[FrameType], file: int) -> bool:
    """Whether a person is asked, or the script calls `input`: data from another program may be slow."""
    return file == 0 and (os.isatty(0) or "input(" in text_of(frames[0]))


def _is_receiving(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") == _CONNECTION


def _are_others_locked(pid: int) -> bool:
    """Whether all other threads that Python runs wait for locks too, so that none can release this one."""
    main = threading.main_thread()  # by object: in a forked process its native id is the parent's
    known = threading.enumerate()
    idents = {item.ident for item in known} | {threading.get_ident()}
    if not idents.issuperset(sys._current_frames()):  # started by `_thread`: what it waits for is not known
        return False
    others = [item.native_id for item in known if item is not main and not item.name.startswith(_OURS)]
    return all(kernel.wait_of(pid, thread=other)[0] == "lock" for other in others)


def _workers_of_loader(frames: list[FrameType]) -> list[int]:
    """Return the worker processes of the loader from which the main thread fetches a batch."""
    for frame in frames:
        if frame.f_globals.get("__name__") == _LOADER and frame.f_code.co_name in _FETCHING:
            workers = _fields_of(frame.f_locals.get("self")).get("_workers", ())
            return [worker.pid for worker in workers if worker.pid is not None]
    return []
