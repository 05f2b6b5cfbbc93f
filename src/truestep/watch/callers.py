"""Callers: from which line, in which phase and in which module one of torch's operations is called.

Owns what is read from Python's frames, from the innermost to the outermost. Patches nothing: frames know
what is under way in their thread, also in hooks and where a checkpointed part is computed again.
"""

import os
import weakref
from collections.abc import Callable
from types import CodeType, FrameType
from typing import NamedTuple

from torch import nn

from truestep.watch.evidence import IN_EVALUATION, IS_FOREIGN, PHASES
from truestep.watch.traces import Tables

_SKIP, _OWN, _OURS, _MODULE, _AGAIN, _DATA, _OPTIMIZER, _BACKWARD = range(1, 9)
_OTHER, _SETUP, *_ = range(len(PHASES))
_PHASES = {
    _DATA: PHASES.index("data"),
    _MODULE: PHASES.index("forward"),
    _AGAIN: PHASES.index("forward"),
    _BACKWARD: PHASES.index("backward"),
    _OPTIMIZER: PHASES.index("optimizer"),
}
_HERE = os.path.dirname(__file__) + os.sep  # noqa: PTH120 - compared with what frames give, by text
_RECOMPUTE = "_checkpoint_without_reentrant_generator.<locals>.recompute_fn"
_MARKS = {  # end of the file's name, then the function's qualified name
    ("torch/nn/modules/module.py", "Module._call_impl"): _MODULE,
    ("torch/utils/checkpoint.py", "CheckpointFunction.backward"): _AGAIN,
    ("torch/utils/checkpoint.py", _RECOMPUTE): _AGAIN,
    ("torch/utils/data/dataloader.py", "DataLoader.__iter__"): _DATA,
    ("torch/utils/data/dataloader.py", "_BaseDataLoaderIter.__next__"): _DATA,
    ("stateful_dataloader/stateful_dataloader.py", "StatefulDataLoader.__iter__"): _DATA,
    ("stateful_dataloader/stateful_dataloader.py", "_BaseDataLoaderIter.__next__"): _DATA,
    ("torch/optim/optimizer.py", "Optimizer.profile_hook_step.<locals>.wrapper"): _OPTIMIZER,
    ("torch/autograd/graph.py", "_engine_run_backward"): _BACKWARD,
}


class Caller(NamedTuple):
    """Where an operation was called, as numbers of the tables."""

    site: int
    outer: int
    phase: int
    module: int
    is_ours: bool
    """Whether the operation belongs to the watching itself."""
    state: int = 0
    """Flags of the innermost module, if they are asked for."""


class Callers:
    """Looks callers up. One lock around it is enough: it calls nothing of the user's."""

    def __init__(self, tables: Tables, is_own: Callable[[str], bool], *, has_states: bool = False) -> None:
        self._tables = tables
        self._has_states = has_states
        self._is_own = is_own
        self._roles: dict[int, int] = {}
        self._codes: list[CodeType] = []  # kept, so that no other code gets the id of one
        self._sites: dict[tuple[int, int], int] = {}
        self._paths: weakref.WeakKeyDictionary[nn.Module, dict[int, str]] = weakref.WeakKeyDictionary()
        self.is_setup = True
        """Whether no module was called yet, no backward pass run and no step made."""

    def look_up(self, frame: FrameType | None, *, is_main: bool) -> Caller:
        """Return who called, looking outward from this frame."""
        roles, ours = self._roles, False
        role, is_first = 0, True
        inner: FrameType | None = None
        outer: FrameType | None = None
        modules: list[FrameType] = []
        while frame is not None:
            code = frame.f_code
            kind = roles.get(id(code)) or self._judge(frame)
            if kind != _SKIP:
                if kind == _OWN:
                    inner, outer = inner or frame, frame
                elif kind == _OURS:
                    ours = ours or is_first
                else:
                    role = role or kind
                    if kind == _MODULE:
                        modules.append(frame)
            is_first = False
            frame = frame.f_back
        return Caller(
            site=self._site(inner),
            outer=0 if is_main else self._site(outer),
            phase=self._phase(role),
            module=self._tables.text(self._path(modules)) if modules else 0,
            is_ours=ours,
            state=self._state(modules) if modules and self._has_states else 0,
        )

    def _phase(self, role: int) -> int:
        if role not in (0, _DATA):
            self.is_setup = False
        return _PHASES.get(role, _SETUP if self.is_setup else _OTHER)

    def _site(self, frame: FrameType | None) -> int:
        if frame is None:
            return 0
        key = (id(frame.f_code), frame.f_lasti)
        number = self._sites.get(key)
        if number is None:
            file, function = os.path.abspath(frame.f_code.co_filename), frame.f_code.co_name  # noqa: PTH100
            number = self._sites[key] = self._tables.site(file, frame.f_lineno, function=function)
        return number

    def _path(self, frames: list[FrameType]) -> str:
        """Return the name of the innermost module under the outermost one."""
        inner, outer = frames[0].f_locals.get("self"), frames[-1].f_locals.get("self")
        if inner is outer or not isinstance(outer, nn.Module):
            return ""
        paths = self._paths.get(outer)
        if paths is None or id(inner) not in paths:
            paths = {id(module): name for name, module in outer.named_modules()}
            self._paths[outer] = paths
        return paths.get(id(inner), type(inner).__name__)

    def _state(self, frames: list[FrameType]) -> int:
        inner, outer = frames[0].f_locals.get("self"), frames[-1].f_locals.get("self")
        if not isinstance(inner, nn.Module) or not isinstance(outer, nn.Module):
            return 0
        is_part = inner is outer or id(inner) in self._paths.get(outer, {})
        is_foreign = not is_part and inner.training and not outer.training
        return IN_EVALUATION * (not inner.training) + IS_FOREIGN * is_foreign

    def _judge(self, frame: FrameType) -> int:
        code, file = frame.f_code, frame.f_code.co_filename
        self._codes.append(code)
        is_torchs = str(frame.f_globals.get("__name__")).startswith("torch.")  # also what its compiler wrote
        role = _SKIP
        if file.startswith(_HERE):
            role = _OURS
        elif not is_torchs and self._is_own(file):
            role = _OWN
        else:
            for (end, name), mark in _MARKS.items():
                if code.co_qualname == name and file.replace(os.sep, "/").endswith(end):
                    role = mark
        self._roles[id(code)] = role
        return role
