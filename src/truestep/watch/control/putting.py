"""What a script keeps, at the beginning of one step: written down, or put back from another run, on purpose.

Owns the moment: the line at which a round of the loop around the steps begins, before the round has computed
anything. Python calls us there by its tracing. Without such a loop it is the step's first forward pass.
"""

import contextlib
import os
import pickle
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from truestep.watch.digests.chain import generator_digests
from truestep.watch.digests.keeping import loop_line, script_frames
from truestep.watch.digests.values import Things, describe, dump
from truestep.watch.script import module_tree
from truestep.watch.script.tape import Tape

KEPT_FILE = "kept.pickle"
"""In the folder of evidence."""


def watch(asked: dict[str, Any], tape: Tape) -> None:
    """Write down what is kept when a step begins, or put it back.

    `step`: which one. `at`: file, function and line where its round begins, if known. `count`: at which
    arrival there things are put back. `names` and `source`: what, and the file that has it.
    """
    _Moment(asked, tape).begin()


class _Moment:
    """Waits for the beginning of a step."""

    def __init__(self, asked: dict[str, Any], tape: Tape) -> None:
        self._tape = tape
        self._steps: list[int] = asked["steps"]
        self._at: list[Any] | None = asked.get("at")
        self._names: list[str] = asked.get("names") or []
        self._source: str | None = asked.get("source")
        self._put_at: int | None = asked.get("count")
        self._count = 0
        self._is_over = False
        self._step = -1
        self._kept: dict[str, bytes] = {}

    def begin(self) -> None:
        self._tape.listen(forward_begins=self._forward, step_begins=self._begin_step, counted=self._next)
        if self._at is not None:
            self._trace()
        self._next()

    def _next(self) -> None:
        self._step, self._count, self._is_over = (
            self._tape.num_steps,
            0,
            self._tape.num_steps not in self._steps,
        )

    def _forward(self, module: Any, *_: Any) -> None:
        if self._count or self._at is None:
            is_trained = torch.is_grad_enabled() and module_tree.is_training(module)
            if is_trained and not self._is_over:
                self._close()

    def _begin_step(self, *_: Any) -> None:
        if self._at is None:
            frames = [frame for frame in script_frames(self._tape.sites) if loop_line(frame) is not None]
            own = [frame for frame in frames if self._tape.sites.is_own(frame.f_code.co_filename)]
            if own:
                code = own[-1].f_code
                self._at = [code.co_filename, code.co_qualname, loop_line(own[-1])]
                self._trace()
        if not self._is_over:
            self._close()

    def _close(self) -> None:
        """The step's first pass begins: what it needs is kept by now, or is taken at once."""
        if not self._count:
            self._act()
        self._is_over = True

    def _trace(self) -> None:
        if sys.gettrace() is not None or threading.current_thread() is not threading.main_thread():
            return  # a debugger of the user's, or coverage
        sys.settrace(self._call)
        for frame in script_frames(self._tape.sites):
            if self._is_here(frame):
                frame.f_trace = self._line

    def _is_here(self, frame: FrameType) -> bool:
        assert self._at is not None
        return [frame.f_code.co_filename, frame.f_code.co_qualname] == self._at[:2]

    def _call(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        return self._line if self._is_here(frame) else None

    def _line(self, frame: FrameType, event: str, _argument: Any) -> Any:
        assert self._at is not None
        if event == "line" and frame.f_lineno == self._at[2] and not self._is_over and self._tape.is_on:
            self._count += 1
            with self._tape.no_user_overrides():
                self._act()
            _ = frame.f_locals  # before Python 3.13 it writes this copy back after us
        return self._line

    def _act(self) -> None:
        try:
            things = Things(self._tape.sites, self._optimizers())
            if self._source is None:
                self._keep(things)
            elif self._put_at in (None, self._count):
                kept = pickle.loads(Path(self._source).read_bytes())  # of our own run, in our own folder
                for name in self._names:
                    things.put(name, pickle.loads(kept[name]))
        except Exception as error:  # noqa: BLE001 - written down: without it, no experiment succeeds
            self._tape.note_trouble("what a step begins with", error)

    def _optimizers(self) -> list[Any]:
        kept = sorted(self._tape.things("optimizer").values(), key=lambda item: item[0])
        found = [item() if callable(item) else item for _, item in kept]
        return [item for item in found if item is not None]

    def _keep(self, things: Things) -> None:
        self._kept.clear()
        for name, thing in things.found.items():
            with contextlib.suppress(Exception):  # what cannot be written cannot be put back
                self._kept[name] = dump(thing.value)
        folder = Path(self._tape.path).parent
        new = folder / f"{KEPT_FILE}.{os.getpid()}"
        new.write_bytes(pickle.dumps(self._kept))
        new.replace(folder / KEPT_FILE)
        values = {name: describe(thing) for name, thing in things.found.items() if name in self._kept}
        kinds = {name: thing.kind for name, thing in things.found.items()}
        begun = {"kinds": kinds, "at": self._at, "count": self._count, "generators": generator_digests()}
        self._tape.write("plain", step=self._step, values=values, begun=begun)
