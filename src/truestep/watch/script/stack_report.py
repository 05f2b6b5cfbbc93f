"""Reports where a rank stands: a thread notices that the main thread has stopped moving, and writes it down.

Owns when that is written, and to which file. It reads frames and `/proc`, holds nothing, and changes nothing
in the script. What the facts mean is for others.
"""

import atexit
import os
import socket
import sys
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from truestep.base.variables import launched_rank_and_size
from truestep.watch.evidence import kernel
from truestep.watch.evidence.kinds import Place
from truestep.watch.evidence.stalls import ASK, Doing, Standing
from truestep.watch.script import blocked, collectives
from truestep.watch.script.sites import Sites

_LOOK_S = 0.5
_STILL_S = 2.5
"""For how long the main thread must have stood at one place before that is written down."""
_AGAIN_S = 1.0
_ANSWER_S = 1.5
"""How long a process whose collective has failed waits for what the others write."""
_STARTER = "truestep.watch.script.exec_script"
"""What has called the script: no line of the user's lies below it."""
_MAX_LINES, _MAX_NUMBERS = 12, 24
_CALLS_PASSED = ("wrapper", "inner", "__call__", "_wrapped_call_impl", "_call_impl")


class StackReport:
    """Writes where this process stands into a file of the folder, when its main thread has stopped moving."""

    def __init__(
        self,
        folder: Path,
        *,
        num_steps: Callable[[], int | None] = lambda: None,
        on_still: Callable[[], None] = lambda: None,
    ) -> None:
        self._pid = os.getpid()
        self._path = folder / f"standing-{self._pid}.json"
        self._ask = folder / ASK
        self._num_steps = num_steps
        self._on_still = on_still
        """Called when the main thread stands still: what was observed so far is worth keeping."""
        self._main = threading.main_thread()
        self._sites = Sites()
        self._host = socket.gethostname()
        self._key: tuple[Any, ...] = ()
        self._key_since_s = self._switches_since_s = time.monotonic()
        self._switches: int | None = None
        self._cpu_s = 0.0
        self._written: Doing | None = None
        self._written_s = 0.0
        self._is_over = False

    def start(self) -> None:
        """Write that this process lives, and look at it from a thread from here on."""
        self._write(self._standing("living"))
        # Not by `threading`: the script may count its threads, or wait for all of them.
        start_new_thread(self._live, ())
        atexit.register(self.end)

    def end(self) -> None:
        """The script has ended."""
        if not self._is_over and os.getpid() == self._pid:
            self._is_over = True
            entered = collectives.read()
            self._write(self._standing("ended", entered=entered))

    def fail(self, error: BaseException) -> None:
        """The script has raised: if a collective has failed, ask everybody where they stand."""
        if self._is_over or os.getpid() != self._pid or isinstance(error, SystemExit | KeyboardInterrupt):
            return
        self._is_over = True
        entered = collectives.read()
        stack = _lines_of_error(error, self._sites)
        text = f"{type(error).__name__}: {error}".partition("\n")[0]
        if not _is_of_collective(error):
            self._write(replace(self._standing("raised", entered=entered), stack=stack, error=text))
            return
        pending = entered.active or entered.last
        if pending is not None:
            pending = replace(pending, place=stack[0] if stack else None)
        facts = self._standing("waiting", entered=entered)
        self._write(replace(facts, stack=stack, error=text, pending=pending))
        self._ask.touch()
        self._wait_for_answers(facts.size)

    def _wait_for_answers(self, size: int) -> None:
        """Wait until all have written since the question, so that none is ended before it has."""
        asked_s, deadline_s = self._ask.stat().st_mtime, time.monotonic() + _ANSWER_S
        while time.monotonic() < deadline_s:
            times = [path.stat().st_mtime for path in self._path.parent.glob("standing-*.json")]
            if sum(written_s >= asked_s for written_s in times) >= size - 1:
                return
            time.sleep(_LOOK_S / 10)

    def _live(self) -> None:
        while True:
            time.sleep(_LOOK_S)
            if self._is_over:
                return
            try:
                self._look()
            except Exception:  # noqa: BLE001 - the script goes on, whatever is odd in it
                continue

    def _look(self) -> None:
        frames = self._frames()
        now_s = time.monotonic()
        self._note_movement(frames, now_s)
        still_s = now_s - self._key_since_s
        is_asked = self._ask.exists() and self._written_s < self._ask.stat().st_mtime
        if still_s >= _STILL_S or is_asked:
            if is_asked or time.time() - self._written_s >= _AGAIN_S:
                self._write(self._describe(frames, now_s))
            if still_s >= _STILL_S:
                self._on_still()
        elif self._written != "living":
            self._write(self._standing("living"))

    def _frames(self) -> list[FrameType]:
        """Return the frames of the main thread, innermost first."""
        frame = sys._current_frames().get(self._main.ident or 0)
        frames = []
        while frame is not None and frame.f_globals.get("__name__") != _STARTER:
            frames.append(frame)
            frame = frame.f_back
        return frames

    def _note_movement(self, frames: list[FrameType], now_s: float) -> None:
        places = tuple((id(frame.f_code), frame.f_lasti) for frame in frames)
        is_still = self._key[1:] == places
        # A loop can be at the same place at each look: another collective means that it moves.
        key = (collectives.active_number() if is_still else -1, *places)
        if not is_still or (key != self._key and self._key[0] != -1):
            self._key_since_s = now_s
            self._cpu_s = self._others_cpu_s()
        self._key = key
        switches = kernel.switches_of(self._pid)
        if switches != self._switches or not is_still:
            self._switches, self._switches_since_s = switches, now_s

    def _others_cpu_s(self) -> float:
        return time.process_time() - time.thread_time()

    def _describe(self, frames: list[FrameType], now_s: float) -> Standing:
        """Return what this process does, as far as that is certain."""
        own = [frame for frame in frames if self._sites.is_own(frame.f_code.co_filename)][:_MAX_LINES]
        stack = tuple(_place(frame.f_code, frame.f_lineno) for frame in own)
        entered = collectives.read()
        place = stack[0] if stack else None
        pending = entered.active
        meeting = collectives.on_stack(frames, entered.made)
        since_s = now_s - self._key_since_s
        is_still = since_s >= _STILL_S
        facts = replace(
            self._standing("living", entered=entered),
            stack=stack,
            numbers=tuple(_numbers(frame) for frame in own),
            call=_call(frames, own),
            since_s=since_s,
        )
        if not is_still:
            return facts
        is_idle = self._others_cpu_s() - self._cpu_s < 0.1 * since_s
        still_s = now_s - self._switches_since_s
        how = blocked.find_block(frames, pid=self._pid, is_idle=is_idle, is_still=still_s >= _STILL_S)
        # While a collective runs, a thread of torch may call Python when it ends.
        if how and not (how == "lock" and pending is not None):
            return replace(facts, doing="stuck", how=how)
        met = meeting or pending
        if met is not None and (meeting is not None or self._is_in_torch(frames, is_idle=is_idle)):
            caller = facts.call if facts.call.isidentifier() and facts.call != met.name else ""
            return replace(facts, doing="waiting", pending=replace(met, place=place, caller=caller))
        return facts

    def _is_in_torch(self, frames: list[FrameType], *, is_idle: bool) -> bool:
        """Whether the main thread waits for a collective, and not for something else meanwhile."""
        wait, _ = kernel.wait_of(self._pid)
        if wait in ("sleep", "read", "child") or not (is_idle or blocked.has_accelerator()):
            return False
        if wait == "running" and not blocked.has_accelerator():
            return False
        top = frames[0]
        if blocked.is_of_torch(top):
            return "torch/utils/data" not in top.f_code.co_filename
        return self._sites.is_own(top.f_code.co_filename) and ".wait(" in blocked.text_of(top)

    def _standing(self, doing: Doing, *, entered: collectives.Entered | None = None) -> Standing:
        rank, size = collectives.rank_and_size() or launched_rank_and_size() or (0, 1)
        return Standing(
            rank=rank,
            size=size,
            pid=self._pid,
            host=self._host,
            doing=doing,
            made=entered.made if entered else None,
            by_kind=entered.by_kind if entered else None,
            steps=self._num_steps(),
        )

    def _write(self, standing: Standing) -> None:
        """Replace the file. The folder is gone when the launcher has ended: then nothing is written."""
        if self._is_over and threading.get_ident() != self._main.ident:
            return  # the main thread has written the last
        new = self._path.with_suffix(".new")
        try:
            new.write_text(standing.pack())
            new.replace(self._path)
        except OSError:
            return
        self._written, self._written_s = standing.doing, time.time()


def _place(code: CodeType, line: int) -> Place:
    return Place(os.path.abspath(code.co_filename), line, code.co_name)  # noqa: PTH100


def _numbers(frame: FrameType) -> dict[str, int]:
    found = {}
    for name, value in list(frame.f_locals.items()):
        if type(value) is int and not name.startswith("__") and abs(value) < 1 << 62:
            found[name] = value
            if len(found) >= _MAX_NUMBERS:
                break
    return found


def _call(frames: list[FrameType], own: list[FrameType]) -> str:
    """Return what the user's innermost line has called."""
    if not own:
        return ""
    if frames[0] is own[0]:
        return blocked.text_of(own[0])
    inner = frames[: frames.index(own[0])]
    named = [frame for frame in inner if frame.f_code.co_name not in _CALLS_PASSED]
    return named[-1].f_code.co_name if named else ""


def _lines_of_error(error: BaseException, sites: Sites) -> tuple[Place, ...]:
    found: list[Place] = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if trace.tb_frame.f_globals.get("__name__") == _STARTER:
            found = []
        if sites.is_own(code.co_filename):
            found.append(_place(code, trace.tb_lineno))
        trace = trace.tb_next
    return tuple(reversed(found))[:_MAX_LINES]


def _is_of_collective(error: BaseException | None) -> bool:
    """Whether an error, or one that led to it, comes from a collective."""
    dist: Any = sys.modules.get("torch.distributed")
    while error is not None:
        text = str(error).lower()
        if dist is not None and isinstance(error, getattr(dist, "DistError", ())):
            return True
        if isinstance(error, RuntimeError) and any(word in text for word in ("gloo", "nccl", "collective")):
            return True
        error = error.__cause__ or error.__context__
    return False
